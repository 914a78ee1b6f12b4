package gateway

import (
	"net/http"

	"boxgate/api/rest"
)

// backup streams a copy of the store. The connection is aborted if the copy fails halfway, so a complete response is a
// complete copy.
func (e *Endpoints) backup(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	out := &lateWriter{w: w}
	if err := e.Store.BackupStore(r.Context(), out); err != nil {
		if out.begun {
			panic(http.ErrAbortHandler)
		}
		return rest.Reply{}, err
	}
	return rest.Reply{Written: true}, nil
}

// lateWriter begins the response with its first bytes.
type lateWriter struct {
	w     http.ResponseWriter
	begun bool
}

// Write implements [io.Writer].
func (l *lateWriter) Write(b []byte) (int, error) {
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", "application/octet-stream")
		l.w.Header().Set("Content-Disposition", `attachment; filename="boxgate.db"`)
		l.w.WriteHeader(http.StatusOK)
	}
	return rest.SteadyWriter(l.w).Write(b)
}

func (e *Endpoints) verifyStore(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	report, err := e.Store.VerifyStore(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: report}, nil
}

package rest

import (
	"net/http"
	"time"

	"boxgate/policy"
)

// Writer knows whether the answer has begun: after that, the only way to report a failure is to close the connection.
type Writer struct {
	http.ResponseWriter
	started bool

	// Record, if not nil, is called once, with the status and what the request has changed, before the answer begins. If it
	// fails, the caller must not be told that the request has succeeded.
	Record   func(status int, change *Change) error
	recorded bool

	// Unread, if not nil, reports whether a part of the body of the request has not been read when the answer begins. The server
	// reads some of it before it sends the answer, and must not wait for ever.
	Unread func() bool
}

// unreadMost bounds the wait for the rest of a body that the handler did not read.
const unreadMost = 2 * time.Second

// Change is what a request has changed, without values that are secret.
type Change struct {
	Box           policy.BoxID // "" if it is of none
	PolicyVersion uint64       // that the policy of the box has now; 0: it has not changed
	What          any          // encoded as JSON
	Also          []Change     // consequences for the policies of other boxes
}

// record records the outcome of a request before it is answered.
func record(w http.ResponseWriter, status int, change *Change) error {
	own, ok := w.(*Writer)
	if !ok || own.Record == nil || own.recorded {
		return nil
	}
	own.recorded = true
	return own.Record(status, change)
}

// End records a request that was not answered.
func (w *Writer) End() { _ = record(w, statusGone, nil) }

// statusGone stands for the answer to a caller that had gone.
const statusGone = 499

// WriteHeader begins the answer. An answer whose outcome could not be recorded is none: the connection is closed.
func (w *Writer) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		if record(w, status, nil) != nil {
			panic(http.ErrAbortHandler)
		}
	}
	if !w.started && w.Unread != nil && w.Unread() {
		_ = http.NewResponseController(w.ResponseWriter).SetReadDeadline(time.Now().Add(unreadMost))
	}
	w.started = true
	w.ResponseWriter.WriteHeader(status)
}

// Write begins the answer if it has not begun.
func (w *Writer) Write(b []byte) (int, error) {
	if !w.started {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

package rest

import (
	"io"
	"net/http"
	"time"
)

const (
	// idleTime is how long a transfer may stand still.
	idleTime = 2 * time.Minute
	// pieceSize is how much is written at a time of an answer that is all there.
	pieceSize = 128 << 10
)

// SteadyBody returns the body of a request, which may be of any length but not stand still.
func SteadyBody(w http.ResponseWriter, r *http.Request) io.ReadCloser {
	return &steadyReader{r.Body, http.NewResponseController(w)}
}

type steadyReader struct {
	io.ReadCloser
	rc *http.ResponseController
}

// Read reads within a deadline; where deadlines are not supported (a test recorder), without.
func (s *steadyReader) Read(b []byte) (int, error) {
	_ = s.rc.SetReadDeadline(time.Now().Add(idleTime))
	n, err := s.ReadCloser.Read(b)
	_ = s.rc.SetReadDeadline(time.Time{})
	return n, err
}

// SteadyWriter writes the body of an answer, whose client must not stop reading for long.
func SteadyWriter(w http.ResponseWriter) io.Writer {
	return steadyWriter{w, http.NewResponseController(w)}
}

type steadyWriter struct {
	w  io.Writer
	rc *http.ResponseController
}

// Write writes piece by piece, each within a deadline. Of more than a piece nothing stays in buffers of the server.
func (s steadyWriter) Write(b []byte) (int, error) {
	defer func() { _ = s.rc.SetWriteDeadline(time.Time{}) }()
	done := 0
	for {
		_ = s.rc.SetWriteDeadline(time.Now().Add(idleTime))
		n, err := s.w.Write(b[done:min(len(b), done+pieceSize)])
		if done += n; err == nil && done == len(b) && done > pieceSize {
			err = s.rc.Flush()
		}
		if err != nil || done == len(b) {
			return done, err
		}
	}
}

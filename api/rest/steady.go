package rest

import (
	"io"
	"net/http"
	"time"
)

const (
	// idleTime is how long a transfer may make no progress.
	idleTime = 2 * time.Minute
	// pieceSize is the number of bytes per write of a response that is already complete.
	pieceSize = 128 << 10
)

// SteadyBody returns the body of a request with a limit on pauses, but not on its length.
func SteadyBody(w http.ResponseWriter, r *http.Request) io.ReadCloser {
	return &steadyReader{r.Body, http.NewResponseController(w)}
}

type steadyReader struct {
	io.ReadCloser
	rc *http.ResponseController
}

// Read reads with a deadline, where deadlines are supported (unlike in a test recorder).
func (s *steadyReader) Read(b []byte) (int, error) {
	_ = s.rc.SetReadDeadline(time.Now().Add(idleTime))
	n, err := s.ReadCloser.Read(b)
	_ = s.rc.SetReadDeadline(time.Time{})
	return n, err
}

// SteadyWriter writes the body of a response with a limit on pauses of the client.
func SteadyWriter(w http.ResponseWriter) io.Writer {
	return steadyWriter{w, http.NewResponseController(w)}
}

type steadyWriter struct {
	w  io.Writer
	rc *http.ResponseController
}

// Write writes in pieces, each with a deadline. If there is more than one piece, it flushes the server's buffers at the
// end.
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

package exec

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

// brokenWriter is the response to a client whose connection is broken.
type brokenWriter struct {
	http.ResponseWriter
	written int
}

func (w *brokenWriter) Write([]byte) (int, error) {
	w.written++
	return 0, errors.New("broken pipe")
}

// TestOutputForNobodyIsNotTaken: after the client has disconnected, writes fail without touching the broken connection
// again.
func TestOutputForNobodyIsNotTaken(t *testing.T) {
	t.Parallel()
	w := &brokenWriter{ResponseWriter: httptest.NewRecorder()}
	s := &execStream{w: w, rc: http.NewResponseController(w)}
	for range 3 {
		if n, err := s.stream("stdout").Write([]byte("output")); n != 0 || !errors.Is(err, errUnread) {
			t.Errorf("%d bytes were taken: %v", n, err)
		}
	}
	if w.written != 1 {
		t.Errorf("%d writes to a broken connection", w.written)
	}
}

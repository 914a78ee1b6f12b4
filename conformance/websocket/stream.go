package websocket

import (
	"io"
	"net"
	"net/http"
	"time"
)

// hijacked is a connection and the data already read from it.
type hijacked struct {
	net.Conn
	r io.Reader
}

// Read implements io.Reader.
func (h hijacked) Read(p []byte) (int, error) { return h.r.Read(p) }

// CloseWrite closes the sending side.
func (h hijacked) CloseWrite() error {
	if c, ok := h.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// serverStream is the server side of an extended CONNECT.
type serverStream struct {
	io.ReadCloser
	w          http.ResponseWriter
	controller *http.ResponseController
}

func overHTTP2(w http.ResponseWriter, r *http.Request) (io.ReadWriteCloser, error) {
	s := serverStream{r.Body, w, http.NewResponseController(w)}
	w.WriteHeader(http.StatusOK)
	return s, s.controller.Flush()
}

// Write flushes after every write.
func (s serverStream) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, s.controller.Flush()
}

// SetReadDeadline sets the deadline of reads.
func (s serverStream) SetReadDeadline(t time.Time) error { return s.controller.SetReadDeadline(t) }

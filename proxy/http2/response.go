package http2

import (
	"errors"
	"net/http"
	"strconv"

	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h2/downstream"
)

// response writes the response of a stream. Its head is sent with the first content, by Flush or at the end.
type response struct {
	s        *downstream.Stream
	fields   []hpack.HeaderField // of the final head, until it is sent
	trailers []hpack.HeaderField
	status   int   // of the final head; 0: not set
	sent     bool  // the final head
	empty    bool  // no content
	left     int64 // content that may still be written; -1: unlimited
	now      bool  // its end must not be delayed
}

var (
	errTooLong = errors.New("the response is longer than its Content-Length")
	errEmpty   = errors.New("the response has no content")
)

// interim sends a 1xx head, unless there is a final one.
func (w *response) interim(status int, fields []hpack.HeaderField) {
	if w.status == 0 && w.s.WriteHeader(status, fields, false) == nil {
		_ = w.s.Flush()
	}
}

// begin sets the final head. Only the first one counts.
func (w *response) begin(status int, fields []hpack.HeaderField) {
	if w.status != 0 {
		return
	}
	w.status, w.fields, w.left = status, fields, -1
	w.empty = w.s.Method == http.MethodHead || status == http.StatusNoContent || status == http.StatusNotModified
	for i := range fields {
		if fields[i].Name == "content-length" {
			if n, err := strconv.ParseUint(fields[i].Value, 10, 63); err == nil {
				w.left = int64(n)
			}
		}
	}
}

// Write sends content.
func (w *response) Write(p []byte) (int, error) {
	switch {
	case w.s.Method == http.MethodHead:
		return len(p), nil
	case w.empty && len(p) > 0:
		return 0, errEmpty
	case w.left >= 0 && int64(len(p)) > w.left:
		return 0, errTooLong
	case w.left >= 0:
		w.left -= int64(len(p))
	}
	if err := w.sendHead(false); err != nil || len(p) == 0 {
		return 0, err
	}
	return w.s.Write(p)
}

func (w *response) sendHead(end bool) error {
	if w.sent {
		return nil
	}
	w.sent = true
	err := w.s.WriteHeader(w.status, w.fields, end)
	w.fields = nil
	return err
}

// writeNow sends the head, if not yet sent, and content. If that would block or is not allowed, it has no effect and returns
// false.
func (w *response) writeNow(p []byte) bool {
	if w.empty || w.left >= 0 && int64(len(p)) > w.left {
		return false
	}
	status := w.status
	if w.sent {
		status = 0
	}
	if !w.s.WriteNow(status, w.fields, p) {
		return false
	}
	if w.sent, w.fields = true, nil; w.left >= 0 {
		w.left -= int64(len(p))
	}
	return true
}

// Flush sends the buffered data.
func (w *response) Flush() error {
	if err := w.sendHead(w.empty); err != nil {
		return err
	}
	return w.s.Flush()
}

// endResponse ends the response. Without a head, it resets the stream.
func (w *response) endResponse() {
	if w.status == 0 {
		return
	}
	if w.now {
		w.endNow()
		return
	}
	if !w.sent && (w.empty || len(w.trailers) == 0) {
		_ = w.sendHead(true) // the client may have left
		return
	}
	if w.sendHead(false) == nil {
		_ = w.s.CloseWrite(w.trailers) // likewise
	}
}

// closable reports whether the response, with all content written, can be ended without blocking.
func (w *response) closable() bool {
	if !w.sent && !w.empty && len(w.trailers) > 0 && !w.writeNow(nil) {
		return false
	}
	return w.sent && len(w.trailers) == 0 || w.s.Ready()
}

// endNow is end for a response that is closable.
func (w *response) endNow() {
	if w.sent {
		w.s.CloseNow(0, w.trailers)
	} else {
		w.s.CloseNow(w.status, w.fields)
	}
}

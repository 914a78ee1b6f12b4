package rest

import (
	"net/http"
	"time"

	"boxgate/policy"
)

// Writer tracks whether the response has begun. After that, a failure can only be reported by closing the connection.
type Writer struct {
	http.ResponseWriter
	started bool

	// Record, if not nil, is called once before the response begins, with its status and the changes made by the request.
	// If it fails, the caller must not receive a success.
	Record   func(status int, change *Change) error
	recorded bool

	// Unread, if not nil, reports whether part of the request body is unread when the response begins. The server reads
	// some of it before it sends the response, which must not block forever.
	Unread func() bool
}

// unreadTimeout bounds the wait for the rest of a body that the handler did not read.
const unreadTimeout = 2 * time.Second

// Change describes the changes made by a request, without secret values.
type Change struct {
	Box           policy.BoxID // may be empty
	PolicyVersion uint64       // new version of the box's policy; 0: unchanged
	What          any          // encoded as JSON
	Also          []Change     // consequences for the policies of other boxes
}

// record passes the result of a request to the audit trail before the response begins.
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

// statusGone is the recorded status if the caller disconnected before the response.
const statusGone = 499

// WriteHeader begins the response. If its result cannot be recorded, it closes the connection instead.
func (w *Writer) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		if record(w, status, nil) != nil {
			panic(http.ErrAbortHandler)
		}
	}
	if !w.started && w.Unread != nil && w.Unread() {
		_ = http.NewResponseController(w.ResponseWriter).SetReadDeadline(time.Now().Add(unreadTimeout))
	}
	w.started = true
	w.ResponseWriter.WriteHeader(status)
}

// Write begins the response if necessary.
func (w *Writer) Write(b []byte) (int, error) {
	if !w.started {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

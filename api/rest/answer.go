package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/policy"
	"boxgate/quota"
)

// Answerer writes the responses of routes. Details of errors that the caller may not see go to the log.
type Answerer struct {
	Log *zap.Logger
	// Broken is called before a response breaks off, with the reason: most clients do not show it. May be nil.
	Broken func(r *http.Request, why string)
}

// Serve returns an http.Handler for a route: it runs the handler and writes the result.
func (a Answerer) Serve(rt Route) http.Handler {
	known := queryNames(rt.Query)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var rep Reply
		err := onlyQuery(r, known)
		held := newHold(w, r, rt)
		defer held.end() // if the handler panics
		if err == nil {
			rep, err = rt.Handle(w, r)
		}
		switch {
		case held.end():
			a.serveLate(w, r, rt, rep, err)
		case err != nil:
			a.Fail(w, r, err)
		case rep.Written:
		default:
			status := max(rep.Status, http.StatusOK)
			if err := record(w, status, rep.Change); err != nil {
				a.Fail(w, r, recordFailed(err))
				return
			}
			if tag := rep.tag(); tag != "" {
				w.Header().Set("ETag", `"`+tag+`"`)
			}
			writeJSON(w, status, rep.Body)
		}
	})
}

// Fail responds with an error. Details that the caller may not see go to the log instead.
func (a Answerer) Fail(w http.ResponseWriter, r *http.Request, err error) {
	status, body, ok := a.failure(w, r, err)
	if !ok {
		return
	}
	if _, ok := errors.AsType[*quota.Error](err); ok {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter(err)))
	}
	writeJSON(w, status, body)
}

// retryAfter returns after how many seconds to try again; 0 if that is not known.
func retryAfter(err error) int {
	if exceeded, ok := errors.AsType[*quota.Error](err); ok {
		return int((exceeded.After + time.Second - 1) / time.Second)
	}
	return 0
}

// failure logs and records an error, and returns the status and the body of its response; false: the client has disconnected.
func (a Answerer) failure(w http.ResponseWriter, r *http.Request, err error) (status int, body problem.Body, ok bool) {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		ended, ours := errors.AsType[*problem.Refusal](context.Cause(r.Context()))
		if !ours {
			return 0, body, false
		}
		err = ended
	}
	status, body = problem.StatusOf(err)
	if status >= http.StatusInternalServerError {
		if shown, ok := errors.AsType[*api.Error](err); ok && shown.Cause != nil {
			err = shown.Cause
		}
		a.Log.Error("admin request failed", zap.String("method", r.Method), zap.String("path", r.URL.Path),
			zap.Int("status", status), zap.Error(err))
	}
	if err := record(w, status, nil); err != nil {
		status, body = problem.StatusOf(recordFailed(err))
		a.Log.Error("the outcome of an admin request is not in the audit trail", zap.String("method", r.Method), zap.Error(err))
	}
	return status, body, true
}

// recordFailed is the response to a request that was executed, but whose result could not be written to the audit trail.
func recordFailed(err error) error {
	return &api.Error{Kind: api.ErrUnavailable, Cause: err, Message: api.NotRecorded + ": " +
		"make room on the disk of state_dir, and look at what the request has changed before you repeat it"}
}

// Recover turns a panic into a 500 without detail, or closes the connection if the response has begun. It must be
// deferred directly, because it calls recover.
func (a Answerer) Recover(w *Writer, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if err, _ := p.(error); errors.Is(err, http.ErrAbortHandler) {
		panic(p)
	}
	// The panic's value may contain parts of the request, so only the stack is logged.
	a.Log.Error("panic in the admin API", zap.String("method", r.Method), zap.String("path", r.URL.Path),
		zap.ByteString("stack", debug.Stack()))
	if w.begun() {
		panic(http.ErrAbortHandler)
	}
	writeJSON(w, http.StatusInternalServerError, problem.Body{Error: "internal error; the gateway's log has the details"})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	data, err := encode(body)
	if err != nil {
		status, data = http.StatusInternalServerError, []byte(`{"error":"internal error"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	_, _ = SteadyWriter(w).Write(data)
}

// encode returns the JSON of a response.
func encode(body any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(body)
	return buf.Bytes(), err
}

// Writer tracks whether the response has begun. After that, a failure can only be reported by closing the connection.
type Writer struct {
	http.ResponseWriter
	started bool // guarded by mu

	// Silence is how long the response may be silent before something is sent that its reader ignores. 0: for any time.
	Silence time.Duration
	mu      sync.Mutex  // orders a response that is held and one of the handler
	pulse   pulse       // of writes
	aside   http.Header // not nil while the response is held: the fields that its handler sets
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

// Record passes the result of a request to the audit trail, for a handler that writes the response itself. It must be called before
// the response begins; its error must be returned instead.
func Record(w http.ResponseWriter, status int, change *Change) error {
	if err := record(w, status, change); err != nil {
		return recordFailed(err)
	}
	return nil
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
	w.mu.Lock()
	if !w.started && w.Unread != nil && w.Unread() {
		_ = http.NewResponseController(w.ResponseWriter).SetReadDeadline(time.Now().Add(unreadTimeout))
	}
	w.started = true
	w.mu.Unlock()
	w.pulse.mark()
	w.ResponseWriter.WriteHeader(status)
}

// Write begins the response if necessary.
func (w *Writer) Write(b []byte) (int, error) {
	if !w.begun() {
		w.WriteHeader(http.StatusOK)
	}
	w.pulse.mark()
	return w.ResponseWriter.Write(b)
}

// begun reports whether the response has begun.
func (w *Writer) begun() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.started
}

// Header returns the fields of the header, in a map of their own while the response is held, which may send them at any time.
func (w *Writer) Header() http.Header {
	if w.aside != nil {
		return w.aside
	}
	return w.ResponseWriter.Header()
}

// Unwrap lets http.ResponseController reach the connection.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

const (
	// idleTime is how long a transfer may make no progress.
	idleTime = 2 * time.Minute
	// pieceSize is the number of bytes per write of a response that is already complete.
	pieceSize = 128 << 10
)

// SteadyBody returns the body of a request with a limit on pauses, but not on its length. It ends with the context of the request, so that
// a client whose key has ended cannot hold the request by sending slowly.
func SteadyBody(w http.ResponseWriter, r *http.Request) io.ReadCloser {
	return &steadyReader{r.Body, http.NewResponseController(w), r.Context()}
}

type steadyReader struct {
	io.ReadCloser
	rc  *http.ResponseController
	ctx context.Context
}

// Read reads with a deadline, where deadlines are supported (unlike in a test recorder).
func (s *steadyReader) Read(b []byte) (int, error) {
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
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

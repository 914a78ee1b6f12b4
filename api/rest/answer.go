package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/quota"
)

// Answerer writes the responses of routes. Details of errors that the caller may not see go to the log.
type Answerer struct {
	Log *zap.Logger
}

// Serve returns an http.Handler for a route: it runs the handler and writes the result.
func (a Answerer) Serve(rt Route) http.Handler {
	known := queryNames(rt.Query)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var rep Reply
		err := onlyQuery(r, known)
		if err == nil {
			rep, err = rt.Handle(w, r)
		}
		switch {
		case err != nil:
			a.Fail(w, r, err)
		case rep.Written:
		default:
			status := max(rep.Status, http.StatusOK)
			if err := record(w, status, rep.Change); err != nil {
				a.Fail(w, r, recordFailed(err))
				return
			}
			if rep.Version != 0 {
				w.Header().Set("ETag", etag(rep.Version))
			}
			writeJSON(w, status, rep.Body)
		}
	})
}

// Fail responds with an error. Details that the caller may not see go to the log instead.
func (a Answerer) Fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		ended, ours := errors.AsType[*problem.Refusal](context.Cause(r.Context()))
		if !ours {
			return // the client disconnected
		}
		err = ended
	}
	status, body := problem.StatusOf(err)
	if exceeded, ok := errors.AsType[*quota.Error](err); ok {
		w.Header().Set("Retry-After", strconv.Itoa(int((exceeded.After+time.Second-1)/time.Second)))
	}
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
	writeJSON(w, status, body)
}

// recordFailed is the response to a request that was executed, but whose result could not be written to the audit trail.
func recordFailed(err error) error {
	return &api.Error{Kind: api.ErrUnavailable, Cause: err, Message: "the request was carried out, but its outcome could not be written to the audit trail: " +
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
	if w.started {
		panic(http.ErrAbortHandler)
	}
	writeJSON(w, http.StatusInternalServerError, problem.Body{Error: "internal error; the gateway's log has the details"})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		status = http.StatusInternalServerError
		buf.Reset()
		buf.WriteString(`{"error":"internal error"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(buf.Len()))
	w.WriteHeader(status)
	_, _ = SteadyWriter(w).Write(buf.Bytes())
}

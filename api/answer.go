package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"go.uber.org/zap"
)

// writer knows whether the answer has begun: after that, the only way to report a failure is to close the connection.
type writer struct {
	http.ResponseWriter
	started bool
}

func (w *writer) WriteHeader(status int) {
	w.started = true
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(b []byte) (int, error) {
	w.started = true
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// reply is the answer of a handler: a body sent as JSON, or nothing if the handler wrote the answer itself.
type reply struct {
	status  int // 0: 200
	body    any
	version uint64 // sent as ETag unless 0
	written bool   // the handler has written the answer
}

// wrap makes an http.Handler of a route: it runs the handler and writes what it returned.
func (a *API) wrap(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var rep reply
		err := onlyQuery(r, rt.query)
		if err == nil {
			rep, err = rt.handle(a, w, r)
		}
		switch {
		case err != nil:
			a.fail(w, r, err)
		case rep.written:
		default:
			if rep.version != 0 {
				w.Header().Set("ETag", etag(rep.version))
			}
			writeJSON(w, max(rep.status, http.StatusOK), rep.body)
		}
	})
}

// fail answers with an error. What the caller may not see goes to the log instead.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		if !errors.Is(context.Cause(r.Context()), errKeyEnded) {
			return // the client disconnected
		}
		err = errKeyEnded
	}
	status, body := statusOf(err)
	if status >= http.StatusInternalServerError {
		if shown, ok := errors.AsType[*Error](err); ok && shown.Cause != nil {
			err = shown.Cause
		}
		a.Log.Error("admin request failed", zap.String("method", r.Method), zap.String("path", r.URL.Path),
			zap.Int("status", status), zap.Error(err))
	}
	writeJSON(w, status, body)
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
	_, _ = w.Write(buf.Bytes())
}

// etag is the entity tag of a version (RFC 9110, 8.8.3).
func etag(version uint64) string { return `"` + strconv.FormatUint(version, 10) + `"` }

// ifMatch reads If-Match (RFC 9110, 13.1.1): nil when absent or "*". A tag that is not ours matches no version: the
// precondition fails, but the request is not malformed.
func ifMatch(r *http.Request) (*uint64, error) {
	values := r.Header.Values("If-Match")
	if len(values) == 0 || len(values) == 1 && strings.TrimSpace(values[0]) == "*" {
		return nil, nil
	}
	tag := strings.TrimSpace(values[0])
	if len(values) > 1 || len(tag) < 3 || tag[0] != '"' || tag[len(tag)-1] != '"' {
		return nil, refuse(http.StatusPreconditionFailed, `If-Match must be one ETag of this resource, such as "3"`)
	}
	version, err := strconv.ParseUint(tag[1:len(tag)-1], 10, 64)
	if err != nil {
		return nil, refuse(http.StatusPreconditionFailed, `If-Match must be one ETag of this resource, such as "3"`)
	}
	return &version, nil
}

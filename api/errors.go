package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"boxgate/policy"
)

// The kinds of error a [Host] may return, each with one status.
var (
	ErrNotFound     = errors.New("not found")                                            // 404
	ErrConflict     = errors.New("in conflict with the current state")                   // 409
	ErrPrecondition = errors.New("the version given in If-Match is not the current one") // 412
	ErrForbidden    = errors.New("not permitted by the configuration")                   // 403
	ErrLimit        = errors.New("a limit is reached")                                   // 429
	ErrNotSupported = errors.New("not supported by this gateway")                        // 501
	ErrUnavailable  = errors.New("not available at the moment")                          // 503
)

// kinds maps each kind to its status, in order of precedence.
var kinds = []struct {
	kind   error
	status int
}{
	{ErrNotFound, http.StatusNotFound},
	{ErrConflict, http.StatusConflict},
	{ErrPrecondition, http.StatusPreconditionFailed},
	{ErrForbidden, http.StatusForbidden},
	{ErrLimit, http.StatusTooManyRequests},
	{ErrNotSupported, http.StatusNotImplemented},
	{ErrUnavailable, http.StatusServiceUnavailable},
	{context.DeadlineExceeded, http.StatusGatewayTimeout},
}

// Error is an error whose message the caller of the API may see. Kind is one of the Err values of this package.
type Error struct {
	Kind    error
	Message string
	Cause   error // for the log; never shown
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error { return []error{e.Kind, e.Cause} }

// Errorf makes an [Error] of the given kind. An error among args that is formatted by %w becomes the cause as well; its
// text is shown, so format only what the caller may see.
func Errorf(kind error, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Message: err.Error(), Cause: errors.Unwrap(err)}
}

// errorBody is the JSON of every refusal.
type errorBody struct {
	Error    string        `json:"error" doc:"what was wrong and, where one is known, the correction"`
	Pointer  string        `json:"pointer,omitempty" doc:"JSON pointer (RFC 6901) to the first problem"`
	Problems []problemView `json:"problems,omitempty"`
}

// problemView is one problem of a request body.
type problemView struct {
	Pointer string `json:"pointer" doc:"JSON pointer (RFC 6901); empty for the whole body"`
	Message string `json:"message"`
}

// statusOf is the one mapping of errors to answers. An error of no known kind gives 500 and says nothing.
func statusOf(err error) (int, errorBody) {
	if invalid, ok := errors.AsType[*policy.InvalidError](err); ok && len(invalid.Problems) > 0 {
		return http.StatusUnprocessableEntity, invalidBody(invalid.Problems)
	}
	if refused, ok := errors.AsType[*httpError](err); ok {
		return refused.status, errorBody{Error: refused.message}
	}
	for _, k := range kinds {
		if !errors.Is(err, k.kind) {
			continue
		}
		if shown, ok := errors.AsType[*Error](err); ok {
			return k.status, errorBody{Error: shown.Message}
		}
		return k.status, errorBody{Error: k.kind.Error()}
	}
	return http.StatusInternalServerError, errorBody{Error: "internal error; the gateway's log has the details"}
}

func invalidBody(problems []policy.Problem) errorBody {
	first := problems[0]
	body := errorBody{Error: first.Message, Pointer: first.Pointer, Problems: problemViews(problems)}
	if first.Pointer != "" {
		body.Error = first.Pointer + ": " + first.Message
	}
	if more := len(problems) - 1; more > 0 {
		body.Error += fmt.Sprintf(" (and %d more)", more)
	}
	return body
}

func problemViews(problems []policy.Problem) []problemView {
	var views []problemView
	for _, p := range problems {
		views = append(views, problemView{p.Pointer, p.Message})
	}
	return views
}

// httpError is a refusal by this package itself.
type httpError struct {
	status  int
	message string
}

func (e *httpError) Error() string { return e.message }

func refuse(status int, format string, args ...any) error {
	return &httpError{status, fmt.Sprintf(format, args...)}
}

// invalid makes a 422 with one problem.
func invalid(pointer, format string, args ...any) error {
	return &policy.InvalidError{Problems: []policy.Problem{{Pointer: pointer, Message: fmt.Sprintf(format, args...)}}}
}

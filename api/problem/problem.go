package problem

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"boxgate/api"
	"boxgate/policy/document"
	"boxgate/quota"
)

// kinds maps each kind to its status, in order of precedence.
var kinds = []struct {
	kind   error
	status int
}{
	{api.ErrNotFound, http.StatusNotFound},
	{api.ErrConflict, http.StatusConflict},
	{api.ErrPrecondition, http.StatusPreconditionFailed},
	{api.ErrForbidden, http.StatusForbidden},
	{api.ErrLimit, http.StatusTooManyRequests},
	{api.ErrFull, http.StatusInsufficientStorage},
	{api.ErrNotSupported, http.StatusNotImplemented},
	{api.ErrUnavailable, http.StatusServiceUnavailable},
	{context.DeadlineExceeded, http.StatusGatewayTimeout},
}

// Body is the JSON of every error response.
type Body struct {
	Error    string `json:"error" doc:"the problem and, if known, the correction"`
	Pointer  string `json:"pointer,omitempty" doc:"JSON pointer (RFC 6901) to the first problem"`
	Problems []View `json:"problems,omitempty"`
	Quota    string `json:"quota,omitempty" doc:"with 429: the exceeded quota (docs/keys.md)"`
}

// SchemaName returns the name of the type in the OpenAPI document.
func (Body) SchemaName() string { return "errorBody" }

// View is one problem of a request body.
type View struct {
	Pointer string `json:"pointer" doc:"JSON pointer (RFC 6901); empty for the whole body"`
	Message string `json:"message"`
}

// SchemaName returns the name of the type in the OpenAPI document.
func (View) SchemaName() string { return "problemView" }

// StatusOf converts an error to a status and a body. An error of unknown kind becomes a 500 without detail.
func StatusOf(err error) (int, Body) {
	if invalid, ok := errors.AsType[*document.InvalidError](err); ok && len(invalid.Problems) > 0 {
		return http.StatusUnprocessableEntity, invalidBody(invalid.Problems)
	}
	if refused, ok := errors.AsType[*Refusal](err); ok {
		return refused.status, Body{Error: refused.message}
	}
	if exceeded, ok := errors.AsType[*quota.Error](err); ok {
		return http.StatusTooManyRequests, Body{Error: exceeded.Error(), Quota: exceeded.Kind.String()}
	}
	for _, k := range kinds {
		if !errors.Is(err, k.kind) {
			continue
		}
		if shown, ok := errors.AsType[*api.Error](err); ok {
			return k.status, Body{Error: shown.Message}
		}
		return k.status, Body{Error: k.kind.Error()}
	}
	return http.StatusInternalServerError, Body{Error: "internal error; the gateway's log has the details"}
}

func invalidBody(problems []document.Problem) Body {
	first := problems[0]
	body := Body{Error: first.Message, Pointer: first.Pointer, Problems: Views(problems)}
	if first.Pointer != "" {
		body.Error = first.Pointer + ": " + first.Message
	}
	if more := len(problems) - 1; more > 0 {
		body.Error += fmt.Sprintf(" (and %d more)", more)
	}
	return body
}

// Views converts problems to their JSON form.
func Views(problems []document.Problem) []View {
	var views []View
	for _, p := range problems {
		views = append(views, View{p.Pointer, p.Message})
	}
	return views
}

// Refusal is an error with a status and a message for the caller. [Refuse] creates it.
type Refusal struct {
	status  int
	message string
}

// Error returns the message.
func (e *Refusal) Error() string { return e.message }

// Refuse returns an error that is answered with the status and the message.
func Refuse(status int, format string, args ...any) error {
	return &Refusal{status, fmt.Sprintf(format, args...)}
}

// Invalid returns an error that is answered with 422 and one problem.
func Invalid(pointer, format string, args ...any) error {
	return &document.InvalidError{Problems: []document.Problem{{Pointer: pointer, Message: fmt.Sprintf(format, args...)}}}
}

// Clip shortens a client's text before it is sent back.
func Clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}

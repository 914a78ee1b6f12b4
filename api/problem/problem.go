// Package problem converts errors to responses of the API: a status, and a JSON body with the problem, its location and
// the fix. [StatusOf] is the only such conversion; [Refuse], [Invalid] and [List] create errors for it.
package problem

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

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
	Code     string `json:"code,omitempty" doc:"host_unreachable: the host of the fleet that has the box does not answer (docs/fleet.md)" example:"host_unreachable"`
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
		return refused.status, Body{Error: refused.message, Code: refused.code}
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
	code    string // for programs; usually empty
}

// Error returns the message.
func (e *Refusal) Error() string { return e.message }

// Refuse returns an error that is answered with the status and the message.
func Refuse(status int, format string, args ...any) error {
	return &Refusal{status: status, message: fmt.Sprintf(format, args...)}
}

// HostUnreachable is the code of the refusal that [Unreachable] returns. Its message begins with it, too, for dialects without a field for it.
const HostUnreachable = "host_unreachable"

// Unreachable returns the refusal, with 503, of a call for a box of another host of the fleet that cannot be reached. Nothing is known
// about the box.
func Unreachable(host, why string) error {
	return &Refusal{http.StatusServiceUnavailable, fmt.Sprintf("%s: host %s of the fleet %s", HostUnreachable, host, why), HostUnreachable}
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

// List collects the problems of a body.
type List []document.Problem

// Add adds a problem.
func (p *List) Add(pointer, format string, args ...any) {
	*p = append(*p, document.Problem{Pointer: pointer, Message: fmt.Sprintf(format, args...)})
}

// Merge adds the problems of err with pointer as a prefix. It returns err unchanged if it is of another kind.
func (p *List) Merge(pointer string, err error) error {
	if err == nil {
		return nil
	}
	wrong, ok := errors.AsType[*document.InvalidError](err)
	if !ok {
		return err
	}
	for _, one := range wrong.Problems {
		*p = append(*p, document.Problem{Pointer: pointer + one.Pointer, Message: one.Message})
	}
	return nil
}

// Err returns the problems as a *[document.InvalidError], or nil if the list is empty.
func (p *List) Err() error {
	if len(*p) == 0 {
		return nil
	}
	return &document.InvalidError{Problems: *p}
}

// EscapeKey escapes a key for a JSON pointer (RFC 6901, section 3).
func EscapeKey(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

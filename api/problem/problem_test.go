package problem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/policy/document"
	"boxgate/quota"
)

func TestStatusOfErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		err    error
		status int
		text   string
	}{
		{api.Errorf(api.ErrNotFound, "no box %q", "x"), 404, `no box "x"`},
		{errors.Join(errors.New("inner"), api.ErrNotFound), 404, "not found"},
		{api.Errorf(api.ErrConflict, "taken"), 409, "taken"},
		{api.ErrPrecondition, 412, api.ErrPrecondition.Error()},
		{api.Errorf(api.ErrForbidden, "needs auth"), 403, "needs auth"},
		{api.Errorf(api.ErrLimit, "too many"), 429, "too many"},
		{api.Errorf(api.ErrNotSupported, "no"), 501, "no"},
		{api.Errorf(api.ErrUnavailable, "down"), 503, "down"},
		{context.DeadlineExceeded, 504, context.DeadlineExceeded.Error()},
		{fmt.Errorf("making: %w", &quota.Error{Holder: quota.Holder{Type: "API key", Name: "ci"}, Kind: quota.Boxes, Used: 2, Limit: 2}), 429, "API key ci has 2 boxes, as many as it may (quotas.boxes); delete one, or have the operator raise it"},
		{Invalid("/a/b", "is wrong"), 422, "/a/b: is wrong"},
		{&document.InvalidError{}, 500, ""},
		{errors.New("secret"), 500, ""},
	}
	for _, tt := range tests {
		status, body := StatusOf(tt.err)
		if status != tt.status || tt.text != "" && body.Error != tt.text || strings.Contains(body.Error, "secret") {
			t.Errorf("%v: %d %q", tt.err, status, body.Error)
		}
	}
}

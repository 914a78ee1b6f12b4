package problem

import (
	"errors"
	"fmt"
	"strings"

	"boxgate/policy/document"
)

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

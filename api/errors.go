package api

import (
	"errors"
	"fmt"
)

// The kinds of error in answers of the gateway, each with its own status.
var (
	ErrNotFound     = errors.New("not found")                                            // 404
	ErrConflict     = errors.New("in conflict with the current state")                   // 409
	ErrPrecondition = errors.New("the version given in If-Match is not the current one") // 412
	ErrForbidden    = errors.New("not permitted by the configuration")                   // 403
	ErrLimit        = errors.New("a limit is reached")                                   // 429
	ErrFull         = errors.New("there is no room left")                                // 507
	ErrNotSupported = errors.New("not supported by this gateway")                        // 501
	ErrUnavailable  = errors.New("not available at the moment")                          // 503
)

// Error is an error with a message for the caller of the API. Kind is one of the Err values of this package.
type Error struct {
	Kind    error
	Message string
	Cause   error // for the log; never shown
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error { return []error{e.Kind, e.Cause} }

// Errorf makes an [Error] of the given kind. If args contain an error formatted with %w, it becomes the cause. Its text
// is part of the message, so format only errors that the caller may see.
func Errorf(kind error, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Message: err.Error(), Cause: errors.Unwrap(err)}
}

package h1

import "errors"

// Error says why a message was refused. Its text never quotes the message.
type Error struct {
	Status int // the status that tells a client so: 400, 414, 417, 431 or 505
	What   string
}

// Error returns what was wrong.
func (e *Error) Error() string { return e.What }

// ErrShort says that the buffer ends before the part asked for does: read more and ask again.
var ErrShort = errors.New("message is not complete yet")

func bad(what string) error { return &Error{Status: 400, What: what} }

// Limits on one message. They are fixed: no legitimate client comes near.
const (
	MaxHead      = 64 << 10 // bytes of a head with its empty line
	MaxFields    = 128      // fields of a head or of a trailer section
	MaxTrailers  = 16 << 10 // bytes of a trailer section
	maxMethod    = 32
	maxChunkLine = 4 << 10 // a response's chunk size line with the extensions that are stripped
)

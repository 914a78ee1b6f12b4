package h1

import "errors"

// Error is the reason for refusing a message. Its text never quotes the message.
type Error struct {
	Status int // the response status for it: 400, 414, 417, 431 or 505
	What   string
}

// Error returns the reason.
func (e *Error) Error() string { return e.What }

// ErrShort means that the buffer ends before the part being parsed does: read more and retry.
var ErrShort = errors.New("message is not complete yet")

// TooManyFields is the error text for a message of more than [MaxFields] fields.
const TooManyFields = "it has more than 128 fields"

func bad(what string) error { return &Error{Status: 400, What: what} }

// Limits on one message. They are fixed: legitimate clients stay far below them.
const (
	MaxHead      = 64 << 10 // bytes of a head with its empty line
	MaxFields    = 128      // fields of a head or of a trailer section
	MaxTrailers  = 16 << 10 // bytes of a trailer section
	maxMethod    = 32
	maxChunkLine = 4 << 10 // a response's chunk size line with the extensions that are stripped
)

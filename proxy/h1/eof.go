package h1

import (
	"errors"
	"io"
)

// NoEOF makes the end of the stream inside a message the error that it is.
func NoEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

package h1

import (
	"errors"
	"io"
)

// NoEOF turns io.EOF inside a message into io.ErrUnexpectedEOF.
func NoEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

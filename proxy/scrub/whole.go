package scrub

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// ErrBody is returned for a body that is not valid in its codings.
var ErrBody = errors.New("the body is not valid in its content coding")

// NewDecoder returns a reader of a body without its codings, which are in the order in which they were applied. The caller
// must have reserved [Memory] for them.
func NewDecoder(codings []string, src io.Reader) (io.Reader, error) {
	for i := len(codings) - 1; i >= 0; i-- {
		var err error
		if src, err = decode(codings[i], src, func(int) {}); err != nil {
			return nil, err
		}
	}
	return src, nil
}

// Decoded returns a whole body without its codings, unless it is larger than most.
func Decoded(codings []string, body []byte, most int) (plain []byte, fits bool, err error) {
	in, err := NewDecoder(codings, bytes.NewReader(body))
	if err == nil {
		plain, err = io.ReadAll(io.LimitReader(in, int64(most)+1))
	}
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrBody, err)
	}
	return plain, len(plain) <= most, nil
}

// Encoded returns a body with codings, applied in their order.
func Encoded(codings []string, plain []byte) ([]byte, error) {
	for _, coding := range codings {
		var out bytes.Buffer
		w, giveBack, err := encode(coding, &out)
		if err != nil {
			return nil, err
		}
		_, err = w.Write(plain)
		err = errors.Join(err, w.Close())
		giveBack()
		if err != nil {
			return nil, err
		}
		plain = out.Bytes()
	}
	return plain, nil
}

package scrub

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/flate"
)

// ErrBody is returned for a body that is not valid in its codings.
var ErrBody = errors.New("the body is not valid in its content coding")

// Decoded returns a decoded body. fits is false if it is longer than most bytes.
func Decoded(codings []string, body []byte, most int, limit Limit) (plain []byte, fits bool, err error) {
	in, err := NewDecoder(codings, bytes.NewReader(body), limit)
	if err == nil {
		plain, err = io.ReadAll(io.LimitReader(in, int64(most)+1))
	}
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrBody, err)
	}
	return plain, len(plain) <= most, nil
}

// Encoded returns a body encoded with codings, in their order.
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

// IsTwoDeflates reports whether a body with the coding deflate can be decoded both as zlib and as raw deflate. Servers support
// either form, and would read different content.
func IsTwoDeflates(body []byte, most int) bool {
	if raw, err := isRawDeflate(bufio.NewReader(bytes.NewReader(body))); raw || err != nil {
		return false
	}
	_, err := io.Copy(io.Discard, io.LimitReader(flate.NewReader(bytes.NewReader(body)), int64(most)+1))
	return err == nil
}

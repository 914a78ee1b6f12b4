package scrub

import (
	"errors"
	"io"
)

// ErrExpands is returned for a body that exceeds its [Limit] when decoded.
var ErrExpands = errors.New("the body expands too much in its content coding")

// Limit bounds the decoded size of a body: to a fixed number of bytes, plus Times the number of bytes received. The bound
// applies between codings as well: otherwise a few bytes could keep a decoder busy that never returns data.
type Limit struct {
	Between int64 // bytes between two codings
	Plain   int64 // fully decoded bytes
	Times   int64
	Stop    func() error // called before each part is decoded: an error ends the decoding; may be nil
}

// NewDecoder returns a reader of the decoded body. codings are in the order they were applied. The caller must
// have reserved [Memory] for them.
func NewDecoder(codings []string, src io.Reader, limit Limit) (io.Reader, error) {
	return newDecoder(codings, src, limit, func(int) {})
}

// newDecoder is [NewDecoder]; window is called as by decode.
func newDecoder(codings []string, src io.Reader, limit Limit, window func(smaller int)) (io.Reader, error) {
	arrived := &counted{Reader: src}
	in := io.Reader(arrived)
	for i := len(codings) - 1; i >= 0; i-- {
		plain, err := decode(codings[i], in, window)
		if err != nil {
			return nil, err
		}
		b := &bounded{Reader: plain, free: limit.Between, limit: limit, of: arrived}
		if i == 0 {
			b.free = limit.Plain
		}
		in = b
	}
	return in, nil
}

// counted counts the bytes read.
type counted struct {
	io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

// bounded is a body without one of its codings.
type bounded struct {
	io.Reader
	free  int64
	limit Limit
	of    *counted // the body as received
	n     int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.limit.Stop != nil {
		if err := b.limit.Stop(); err != nil {
			return 0, err
		}
	}
	n, err := b.Reader.Read(p)
	if b.n += int64(n); b.n > b.free+b.limit.Times*b.of.n {
		return 0, ErrExpands
	}
	return n, err
}

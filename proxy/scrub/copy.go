package scrub

import (
	"errors"
	"io"
)

// Source is a body that is being received.
type Source interface {
	// Read is like that of [io.Reader], but it calls wait before it blocks for more data, and returns wait's error.
	Read(p []byte, wait func() error) (int, error)
}

// Sink receives masked data.
type Sink interface {
	io.Writer
	// Flush sends the buffered data.
	Flush() error
}

// Masker masks a body chunk by chunk: a [Stream] or [Messages].
type Masker interface {
	mask(dst, part []byte) ([]byte, error)
	maskEnd(dst []byte) ([]byte, error)
}

func (s *Stream) mask(dst, part []byte) ([]byte, error) { return s.Append(dst, part), nil }
func (s *Stream) maskEnd(dst []byte) ([]byte, error)    { return s.End(dst), nil }

// Copy copies a body from src to dst, masked. The codings, in the order they were applied, are decoded and encoded
// again. Received data is flushed before waiting for more; memory is bounded by the windows of the codings. After an error
// the body must be aborted. Errors are those of reading and of stop, or report a body that is truncated, is invalid for
// its coding, has trailing data, needs too large a window ([ErrWindow]) or expands too much ([ErrExpands]).
//
// The caller must have reserved [Memory] for the codings. spare is called with the part of it that is not needed; stop is
// called as for a [Limit].
func Copy(dst Sink, src Source, m Masker, codings []string, spare func(int), stop func() error) error {
	c := &copying{dst: dst, src: src, masker: m, out: dst, spare: spare}
	defer c.releaseEncoders()
	in, err := newDecoder(codings, c, Limit{Between: copyBetween, Plain: copyPlain, Times: copyTimes, Stop: stop}, c.spare)
	if err != nil {
		return c.mapDecodeError(err)
	}
	if err := c.stackEncoders(codings); err != nil {
		return err
	}
	if err := c.copyBody(in); err != nil || !c.gotData {
		return err
	}
	for _, e := range c.encoders {
		if err := e.Close(); err != nil {
			return err
		}
	}
	return nil
}

// Bounds of the [Limit] for copied bodies. Times exceeds the maximum expansion of deflate.
const (
	copyBetween = 8 << 20
	copyPlain   = 1 << 30
	copyTimes   = 1100
)

// copying is the state of one Copy.
type copying struct {
	dst    Sink
	src    Source
	masker Masker
	spare  func(int)

	out          io.Writer // the outermost encoder, or dst
	encoders     []encoder // in the order data flows
	releases     []func()
	pending      bool // the encoders have unflushed data
	gotData, eof bool // some data, and the end, was read
}

func (c *copying) releaseEncoders() {
	for _, f := range c.releases {
		f()
	}
}

// Read reads the undecoded body, for the decoders.
func (c *copying) Read(p []byte) (int, error) {
	n, err := c.src.Read(p, c.flush)
	c.gotData = c.gotData || n > 0
	c.eof = errors.Is(err, io.EOF)
	return n, err
}

func (c *copying) stackEncoders(codings []string) error {
	for i := len(codings) - 1; i >= 0; i-- {
		e, giveBack, err := encode(codings[i], c.out)
		if err != nil {
			return err
		}
		c.releases = append(c.releases, giveBack)
		c.encoders = append([]encoder{e}, c.encoders...)
		c.out = e
	}
	return nil
}

// partSize is the number of bytes decoded at a time.
const partSize = 32 << 10

func (c *copying) copyBody(in io.Reader) error {
	buf, out := make([]byte, partSize), []byte(nil)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			var failed error
			if out, failed = c.masker.mask(out[:0], buf[:n]); failed == nil {
				failed = c.write(out)
			}
			if failed != nil {
				return failed
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			if out, err = c.masker.maskEnd(out[:0]); err != nil {
				return err
			}
			return c.write(out)
		case err != nil:
			return c.mapDecodeError(err)
		}
	}
}

func (c *copying) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	c.pending = true
	_, err := c.out.Write(b)
	return err
}

// flush flushes every encoder, and dst even if the encoders are empty: a head may have been written to it before.
func (c *copying) flush() error {
	if c.pending {
		c.pending = false
		for _, e := range c.encoders {
			if err := e.Flush(); err != nil {
				return err
			}
		}
	}
	return c.dst.Flush()
}

// mapDecodeError maps an error of a decoder: to nil if the body is empty, which is valid in every coding, and io.EOF to
// io.ErrUnexpectedEOF, because the body is truncated.
func (c *copying) mapDecodeError(err error) error {
	switch {
	case c.eof && !c.gotData:
		return nil
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return err
}

// Stream masks one text that arrives in chunks. The result does not depend on how it is split. It buffers only a tail
// that could be the beginning of a form, at most the length of the longest form. Not safe for concurrent use.
type Stream struct {
	own     *Set // the set of NewStream
	latest  *Set // the set that superseded own when last checked
	set     *Set // own and latest combined
	tail    []byte
	covered int // leading bytes of held that belong to a form begun before them
}

// NewStream returns a stream that masks the secrets of a set, which may be nil.
func NewStream(s *Set) *Stream { return &Stream{own: s, latest: s, set: s} }

// Append takes the next chunk of the text and appends the decided bytes to dst.
func (s *Stream) Append(dst, part []byte) []byte {
	if s.own == nil {
		return append(dst, part...)
	}
	start := len(dst)
	dst = append(append(dst, s.tail...), part...)
	decided, covered, _ := s.currentSet().scan(dst[start:], s.covered, false)
	s.tail = append(s.tail[:0], dst[start+decided:]...)
	s.covered = covered
	return dst[:start+decided]
}

// End appends the buffered tail: the text is complete. The stream is then ready for another text.
func (s *Stream) End(dst []byte) []byte {
	if len(s.tail) == 0 {
		return dst
	}
	start := len(dst)
	dst = append(dst, s.tail...)
	s.currentSet().scan(dst[start:], s.covered, true)
	s.tail, s.covered = s.tail[:0], 0
	return dst
}

// Held returns the number of buffered bytes.
func (s *Stream) Held() int { return len(s.tail) }

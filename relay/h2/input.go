package h2

import (
	"errors"
	"io"

	"boxgate/internal/buffers"
)

const (
	inputIdle   = 1 << 10 // size of the buffer of a connection without streams
	inputDirect = 4 << 10 // reads of at least this size bypass an empty buffer
)

// ErrAgain is returned by the source of an [Input] to be read again, as the connection may have become idle.
var ErrAgain = errors.New("read again")

var inputs = buffers.NewPool(FrameMax) // a TLS record fits

// Input reads the frames of a connection, a TLS record at a time. It holds a buffer while the connection has streams or the
// buffer is not empty. Not safe for concurrent use.
type Input struct {
	source io.Reader
	wait   func() (busy bool)
	idle   [inputIdle]byte
	buf    *[]byte // borrowed
	rest   []byte  // of idle or buf
}

// Open sets the source. wait is called before each read of source, which may block, and reports whether the connection has
// streams.
func (in *Input) Open(source io.Reader, wait func() (busy bool)) { in.source, in.wait = source, wait }

// Close returns the buffer to its pool and discards its contents.
func (in *Input) Close() {
	if in.rest = nil; in.buf != nil {
		inputs.Put(in.buf)
		in.buf = nil
	}
}

// Read implements io.Reader.
func (in *Input) Read(p []byte) (int, error) {
	for len(in.rest) == 0 && len(p) > 0 {
		busy := in.wait()
		space := p
		if len(p) < inputDirect {
			space = in.space(busy)
		}
		n, err := in.source.Read(space)
		switch {
		case n == 0 && errors.Is(err, ErrAgain):
			continue
		case len(p) >= inputDirect:
			return n, err
		}
		if in.rest = space[:n]; n == 0 {
			return 0, err
		} // else an error comes again
	}
	n := copy(p, in.rest)
	in.rest = in.rest[n:]
	return n, nil
}

// space returns the buffer to read into.
func (in *Input) space(busy bool) []byte {
	if !busy {
		in.Close()
		return in.idle[:]
	}
	if in.buf == nil {
		in.buf = inputs.Get()
	}
	return *in.buf
}

// Arrived returns the next n bytes if they have arrived, else nil. They are valid until the next call.
func (in *Input) Arrived(n int) []byte {
	if n > len(in.rest) {
		return nil
	}
	p := in.rest[:n:n]
	in.rest = in.rest[n:]
	return p
}

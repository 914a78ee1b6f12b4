package relay

import (
	"errors"
	"io"

	"boxgate/internal/buffers"
	"boxgate/relay/h1"
)

// StreamInput is the body of a request over HTTP/2 as its side takes it from the client.
type StreamInput interface {
	// Arrived returns how much of the body can be read without waiting, and whether that is the rest of it.
	Arrived() (n int, whole bool)
	// Read reads the body up to io.EOF. Any other error refuses it.
	Read(p []byte) (int, error)
	// AppendLast appends the last chunk for the server. It is called after the end was read.
	AppendLast(out []byte) []byte
	// Interrupt and Panicked are the methods of [Source].
	Interrupt()
	Panicked(v any)
}

// ErrShort is a body that does not have its length. The server would take the next request for a part of it.
var ErrShort = errors.New("the body does not have its length")

// StreamBody is the body of a request over HTTP/2 ([Source]).
type StreamBody struct {
	StreamInput
	chunked bool  // for the server
	left    int64 // of a body of known length
}

// NewStreamBody returns a body of a length; -1 if it is not known.
func NewStreamBody(in StreamInput, length int64) StreamBody {
	return StreamBody{in, length < 0, length}
}

// Gather implements [Source]. It takes the body only if all of it has arrived and it is small.
func (b *StreamBody) Gather(head []byte) (grown []byte, content int, whole bool, err error) {
	if n, all := b.Arrived(); !all || n > buffers.OutFlush {
		return head, 0, false, nil
	}
	for n := 0; !whole && err == nil; content += n {
		head, n, whole, err = b.read(head)
	}
	return head, content, whole, err
}

// More implements [Source].
func (b *StreamBody) More(out *Output) (framed []byte, content int, last bool, err error) {
	out.Buf, content, last, err = b.read(out.Take())
	return out.Buf, content, last, err
}

var streamBuffers = buffers.NewPool(16 << 10)

// read appends the next part of the body.
func (b *StreamBody) read(out []byte) (grown []byte, n int, last bool, err error) {
	buf := streamBuffers.Get()
	defer streamBuffers.Put(buf)
	n, err = b.Read(*buf)
	if last = errors.Is(err, io.EOF); last {
		err = nil
	}
	if !b.chunked {
		if b.left -= int64(n); b.left < 0 || last && b.left > 0 {
			return out, 0, false, ErrShort
		}
		return append(out, (*buf)[:n]...), n, last, err
	}
	if out = h1.AppendChunk(out, (*buf)[:n]); last {
		out = b.AppendLast(out)
	}
	return out, n, last, err
}

package exchange

import (
	"errors"
	"io"

	"boxgate/internal/h1"
	"boxgate/proxy/scrub"
)

// Arriving is the body of an HTTP/1.1 response, read as it arrives.
type Arriving struct {
	In         *h1.Reader
	Body       *h1.Body
	UntilClose bool
	content    []byte // in the buffer of in, not read yet
	done       bool
}

// Read returns content, then io.EOF after the end of the body. It calls wait before it blocks on the server.
func (a *Arriving) Read(p []byte, wait func() error) (int, error) {
	for len(a.content) == 0 {
		if a.done {
			return 0, io.EOF
		}
		content, n, done, err := a.Body.Next(a.In.Bytes())
		if err != nil {
			return 0, err
		}
		a.In.Take(n)
		a.content, a.done = content, done
		if n > 0 || done {
			continue
		}
		if err := wait(); err != nil {
			return 0, err
		}
		if err := a.In.Fill(); err != nil {
			if a.done = a.UntilClose && errors.Is(err, io.EOF); !a.done {
				return 0, h1.NoEOF(err)
			}
		}
	}
	n := copy(p, a.content)
	a.content = a.content[n:]
	return n, nil
}

// maskedFrames is the client's side of a WebSocket. It masks secrets in what is written to it.
type maskedFrames struct {
	io.Writer
	frames *scrub.Frames
	out    []byte
}

// frameBuffer is the largest buffer kept between writes.
const frameBuffer = 16 << 10

// Write masks the frames in p and writes them.
func (m *maskedFrames) Write(p []byte) (int, error) {
	out, err := m.frames.Append(m.out[:0], p)
	if m.out = out; cap(out) > frameBuffer {
		m.out = nil
	}
	if len(out) > 0 {
		if _, err := m.Writer.Write(out); err != nil {
			return 0, err
		}
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// Masking returns w, wrapped to mask the frames written to it if the rule asks for it.
func (r *Ruling) Masking(w io.Writer) io.Writer {
	if r.Scrub == nil || r.errors {
		return w
	}
	return &maskedFrames{Writer: w, frames: scrub.NewFrames(r.Scrub)}
}

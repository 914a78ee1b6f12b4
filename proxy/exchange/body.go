package exchange

import (
	"io"

	"boxgate/proxy/scrub"
)

// framed is a side of a WebSocket. The frames written to it are searched and changed.
type framed struct {
	io.Writer
	frames interface {
		// Append appends the changed frames in p to dst. Parts of frames wait for the rest.
		Append(dst, p []byte) ([]byte, error)
	}
	out []byte
}

// frameBuffer is the largest buffer kept between writes.
const frameBuffer = 16 << 10

// Write changes the frames in p and writes them.
func (m *framed) Write(p []byte) (int, error) {
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

// Masking returns w, wrapped to mask the frames written to it if the rule requires that.
func (r *Decision) Masking(w io.Writer) io.Writer {
	if r.Scrub == nil || r.errorsOnly {
		return w
	}
	return &framed{Writer: w, frames: scrub.NewFrames(r.Scrub)}
}

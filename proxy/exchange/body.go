package exchange

import (
	"io"

	"boxgate/proxy/scrub"
)

// maskedFrames is the client's side of a WebSocket. It masks secrets in the frames written to it.
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

// Masking returns w, wrapped to mask the frames written to it if the rule requires that.
func (r *Decision) Masking(w io.Writer) io.Writer {
	if r.Scrub == nil || r.errorsOnly {
		return w
	}
	return &maskedFrames{Writer: w, frames: scrub.NewFrames(r.Scrub)}
}

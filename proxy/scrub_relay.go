package proxy

import (
	"errors"
	"io"
	"net/http"

	"boxgate/proxy/h1"
	"boxgate/proxy/header"
	"boxgate/proxy/scrub"
)

// arriving is a response's body on an HTTP/1.1 connection as it arrives.
type arriving struct {
	in         *h1.Reader
	body       *h1.Body
	untilClose bool
	content    []byte // in the buffer of in, not read yet
	done       bool
}

// Read returns content, and io.EOF behind the end of the body; it calls wait before it waits for the server.
func (a *arriving) Read(p []byte, wait func() error) (int, error) {
	for len(a.content) == 0 {
		if a.done {
			return 0, io.EOF
		}
		content, n, done, err := a.body.Next(a.in.Bytes())
		if err != nil {
			return 0, err
		}
		a.in.Take(n)
		a.content, a.done = content, done
		if n > 0 || done {
			continue
		}
		if err := wait(); err != nil {
			return 0, err
		}
		if err := a.in.Fill(); err != nil {
			if a.done = a.untilClose && errors.Is(err, io.EOF); !a.done {
				return 0, h1.NoEOF(err)
			}
		}
	}
	n := copy(p, a.content)
	a.content = a.content[n:]
	return n, nil
}

// http1Sink is the client of an HTTP/1.x response.
type http1Sink struct {
	h       *http1
	chunked bool
}

func (s http1Sink) Write(p []byte) (int, error) { return len(p), s.h.put(p, s.chunked) }
func (s http1Sink) Flush() error                { return s.h.flush() }

// beginScrub looks at the final head before anything of it goes on.
func (h *http1) beginScrub() (err error) {
	h.scrub, err = h.s.newScrubbing(&h.ruling, h.res.Status, h.res.Body.Empty(), valuesOf(&h.res))
	if err == nil && h.scrub.resized {
		withoutLength(&h.res)
	}
	return err
}

func (h *http1) endScrub() {
	h.scrub.end()
	h.scrub = nil
}

// unscrubbable refuses a response.
func (h *http1) unscrubbable(u *upload, err error) error {
	u.stop(h)
	h.uploaded(u)
	h.drop()
	return h.refuseUpstream(err)
}

// relayScrubbed is relay for a body that is scrubbed.
func (h *http1) relayScrubbed(chunked bool) error {
	h.resBody.Begin(h.res.Body, true)
	src := &arriving{in: &h.up.In, body: &h.resBody, untilClose: h.res.Body.UntilClose}
	if err := h.scrub.relay(http1Sink{h, chunked}, src); err != nil {
		return err
	}
	if chunked {
		maskFields(h.scrub.set, h.resBody.Trailers)
		h.out = header.AppendLastChunk(h.out, h.resBody.Trailers, nil)
	}
	return h.flush()
}

// http2Sink is the client of an HTTP/2 response.
type http2Sink struct {
	st *stream
	flushWriter
}

func (s http2Sink) Write(p []byte) (int, error) {
	s.st.x.event.BytesIn += int64(len(p))
	return s.w.Write(p)
}

func (s http2Sink) Flush() error { return s.controller.Flush() }

func (st *stream) sink() http2Sink {
	return http2Sink{st, flushWriter{st.w, http.NewResponseController(st.w)}}
}

// http2Body is a response's body on an HTTP/2 connection. It cannot tell whether a read will wait.
type http2Body struct{ io.Reader }

func (b http2Body) Read(p []byte, wait func() error) (int, error) {
	if err := wait(); err != nil {
		return 0, err
	}
	return b.Reader.Read(p)
}

// maskedFrames is the client's end of a WebSocket, masking what is written to it.
type maskedFrames struct {
	io.Writer
	frames *scrub.Frames
	out    []byte
}

// frameBuffer is how large a buffer is kept between writes.
const frameBuffer = 16 << 10

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

// masking returns w, or one that masks the frames written to it where the rule says so.
func (r *ruling) masking(w io.Writer) io.Writer {
	if r.scrub == nil {
		return w
	}
	return &maskedFrames{Writer: w, frames: scrub.NewFrames(r.scrub)}
}

// scrubbable looks at the head of a final response to an HTTP/2 client; one that is refused was answered. The scrubbing
// ends with the stream.
func (st *stream) scrubbable(status int, bodiless bool, field func(string) []string) bool {
	if st.ruling.scrub == nil {
		return true
	}
	var err error
	if st.scrub, err = st.s.newScrubbing(&st.ruling, status, bodiless, field); err != nil {
		st.refuseUpstream(err)
		return false
	}
	return true
}

// maskHead masks the head that is about to go to the client.
func (st *stream) maskHead() {
	if st.scrub == nil {
		return
	}
	maskHeader(st.scrub.set, st.w.Header())
	if st.scrub.resized {
		st.w.Header()["Content-Length"] = nil
	}
}

// relayScrubbed moves a body that is scrubbed.
func (st *stream) relayScrubbed(src scrub.Source) error {
	dst := st.sink()
	if err := st.scrub.relay(dst, src); err != nil {
		return err
	}
	return dst.Flush()
}

// withoutBody reports whether a response has no body.
func withoutBody(res *http.Response, method string) bool {
	return res.ContentLength == 0 || method == http.MethodHead ||
		res.StatusCode == http.StatusNoContent || res.StatusCode == http.StatusNotModified
}

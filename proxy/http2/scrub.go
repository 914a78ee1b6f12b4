package http2

import (
	"io"
	"net/http"

	"boxgate/proxy/exchange"
	"boxgate/proxy/scrub"
)

// http2Sink is the client of an HTTP/2 response.
type http2Sink struct {
	st *stream
	flushWriter
}

func (s http2Sink) Write(p []byte) (int, error) {
	s.st.x.Event.BytesIn += int64(len(p))
	return s.w.Write(p)
}

func (s http2Sink) Flush() error { return s.controller.Flush() }

func (st *stream) sink() http2Sink {
	return http2Sink{st, flushWriter{st.w, http.NewResponseController(st.w)}}
}

// http2Body is the body of a response on an HTTP/2 connection, where it is not known whether a read will block.
type http2Body struct{ io.Reader }

func (b http2Body) Read(p []byte, wait func() error) (int, error) {
	if err := wait(); err != nil {
		return 0, err
	}
	return b.Reader.Read(p)
}

// scrubbable inspects the head of a final response to an HTTP/2 client; if the response is refused the client has been
// answered. The scrubbing ends with the stream.
func (st *stream) scrubbable(status int, bodiless bool, field func(string) []string) bool {
	if st.ruling.Scrub == nil {
		return true
	}
	var err error
	if st.scrub, err = st.s.NewScrubbing(&st.ruling, status, bodiless, field); err != nil {
		st.refuseUpstream(err)
		return false
	}
	return true
}

// maskHead masks the head before it is sent to the client.
func (st *stream) maskHead() {
	if st.scrub == nil {
		return
	}
	exchange.MaskHeader(st.scrub.Set, st.w.Header())
	if st.scrub.Resized {
		st.w.Header()["Content-Length"] = nil
	}
}

// relayScrubbed relays a body that is scrubbed.
func (st *stream) relayScrubbed(src scrub.Source) error {
	dst := st.sink()
	if err := st.scrub.Relay(dst, src); err != nil {
		return err
	}
	return dst.Flush()
}

// withoutBody reports whether a response has no body.
func withoutBody(res *http.Response, method string) bool {
	return res.ContentLength == 0 || method == http.MethodHead ||
		res.StatusCode == http.StatusNoContent || res.StatusCode == http.StatusNotModified
}

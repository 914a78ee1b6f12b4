package http2

import (
	"net/http"
	"slices"

	"golang.org/x/net/http2/hpack"

	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/scrub"
	"boxgate/relay/h2/upstream"
)

// http2Sink is the client of an HTTP/2 response.
type http2Sink struct{ st *stream }

func (s http2Sink) Write(p []byte) (int, error) {
	s.st.x.Event.BytesIn += int64(len(p))
	return s.st.w.Write(p)
}

func (s http2Sink) Flush() error { return s.st.w.Flush() }

// http2Body is the body of a response on an HTTP/2 connection.
type http2Body struct{ *upstream.Stream }

// Read calls wait before it blocks on the server.
func (b http2Body) Read(p []byte, wait func() error) (int, error) {
	if n, err := b.ReadArrived(p); n > 0 || err != nil {
		return n, err
	}
	if err := wait(); err != nil {
		return 0, err
	}
	return b.Stream.Read(p)
}

// scrubbable inspects the head of a final response to an HTTP/2 client, and reports whether it may be relayed; if not, it has
// answered the client. The scrubbing ends with the stream.
func (st *stream) scrubbable(status int, bodiless bool, field func(string) []string) bool {
	err := st.beginScrub(status, bodiless, field)
	if err != nil {
		st.refuseUpstream(err)
	}
	return err == nil
}

// beginScrub starts scrubbing a response if the decision requires it. An error refuses the response.
func (st *stream) beginScrub(status int, bodiless bool, field func(string) []string) (err error) {
	if st.decision.Scrub != nil {
		st.scrub, err = st.s.NewScrubbing(&st.decision, status, bodiless, field)
	}
	return err
}

// answer sets the head of the response, masked.
func (st *stream) answer(status int, fields []hpack.HeaderField) {
	if st.scrub != nil {
		exchange.MaskHTTP2(st.scrub.Set, fields)
		if st.scrub.Resized {
			fields = slices.DeleteFunc(fields, func(f hpack.HeaderField) bool { return f.Name == "content-length" })
		}
	}
	st.w.begin(status, st.decision.ResponseHTTP2(fields))
}

// interim sends a 1xx head, masked.
func (st *stream) interim(status int, fields []hpack.HeaderField) {
	exchange.MaskHTTP2(st.decision.Scrub, fields)
	st.w.interim(status, st.decision.ResponseHTTP2(fields))
}

// setTrailers sets the trailers of the response, masked.
func (st *stream) setTrailers(fields []hpack.HeaderField) {
	fields = header.PassTrailers(fields, nil)
	exchange.MaskHTTP2(st.decision.Scrub, fields)
	st.w.trailers = st.decision.ResponseHTTP2(fields)
}

// relayScrubbed relays a body that is scrubbed.
func (st *stream) relayScrubbed(src scrub.Source) error {
	return st.scrub.Relay(st.ctx, http2Sink{st}, src)
}

// bodiless reports whether a response has no body.
func (st *stream) bodiless(h *upstream.Head) bool {
	return h.Length == 0 || h.Length < 0 && h.End || st.client.Method == http.MethodHead ||
		h.Status == http.StatusNoContent || h.Status == http.StatusNotModified
}

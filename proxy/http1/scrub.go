package http1

import (
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
)

// http1Sink is the client of an HTTP/1.x response.
type http1Sink struct {
	h       *conn
	chunked bool
}

func (s http1Sink) Write(p []byte) (int, error) { return len(p), s.h.put(p, s.chunked) }

func (s http1Sink) Flush() error { return s.h.flush() }

// beginScrub inspects the final head before any of it is forwarded.
func (h *conn) beginScrub() (err error) {
	h.scrub, err = h.s.NewScrubbing(&h.ruling, h.res.Status, h.res.Body.Empty(), exchange.ResponseValues(&h.res))
	if err == nil && h.scrub.Resized {
		exchange.WithoutLength(&h.res)
	}
	return err
}

func (h *conn) endScrub() {
	h.scrub.End()
	h.scrub = nil
}

// unscrubbable refuses a response that cannot be scrubbed.
func (h *conn) unscrubbable(u *upload, err error) error {
	u.stop(h)
	h.uploaded(u)
	h.drop()
	return h.refuseUpstream(err)
}

// relayScrubbed is relay for bodies that are scrubbed.
func (h *conn) relayScrubbed(chunked bool) error {
	h.resBody.Begin(h.res.Body, true)
	src := &exchange.Arriving{In: &h.up.In, Body: &h.resBody, UntilClose: h.res.Body.UntilClose}
	if err := h.scrub.Relay(h.ctx, http1Sink{h, chunked}, src); err != nil {
		return err
	}
	if chunked {
		exchange.MaskFields(h.scrub.Set, h.resBody.Trailers)
		h.out = header.AppendLastChunk(h.out, h.ruling.ResponseFields(h.resBody.Trailers), nil)
	}
	return h.flush()
}

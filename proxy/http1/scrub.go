package http1

import (
	"boxgate/proxy/exchange"
	"boxgate/relay"
)

// sink is the client of a scrubbed response.
type sink struct{ *conn }

func (s sink) Write(p []byte) (int, error) { return len(p), s.Put(p) }

// beginScrub inspects the final head before any part of it is forwarded.
func (h *conn) beginScrub() (err error) {
	h.scrub, err = h.s.NewScrubbing(&h.decision, h.Res.Status, h.Res.Body.Empty(), relay.ValuesIn(h.Res.Fields))
	if err == nil && h.scrub.Resized {
		exchange.WithoutLength(&h.Res)
	}
	return err
}

func (h *conn) endScrub() {
	h.scrub.End()
	h.scrub = nil
}

// relayScrubbed is [conn.Relay] for bodies that are scrubbed.
func (h *conn) relayScrubbed() error {
	if err := h.scrub.Relay(h.ctx, sink{h}, &h.Body); err != nil {
		return err
	}
	exchange.MaskFields(h.scrub.Set, h.Body.Trailers)
	return nil
}

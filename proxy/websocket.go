package proxy

import (
	"sync/atomic"

	"boxgate/internal/handshake"
	"boxgate/proxy/h1"
	"boxgate/proxy/header"
	"boxgate/proxy/tunnel"
)

// upgraded returns why an answer of 101 does not make a WebSocket of the connection on which it was asked for; nil if it
// does. Anything else that the server might mean by it would be a tunnel for the box.
func upgraded(request handshake.Fields, answer *h1.Response) error {
	if answer.Minor == 0 || !h1.EqualFold(answer.Upgrade, "websocket") { // which is nil unless Connection names it
		return errProtocol
	}
	return handshake.Verify(request, valuesOf(answer))
}

// tunnel answers 101 and passes the bytes of an upgraded connection both ways, to that upstream and nowhere else. The
// request stays published: a policy that denies it later cuts the tunnel. n is the length of the response's head.
func (h *http1) tunnel(n int) error {
	h.out = header.AppendResponse(h.takeOut(), &h.res, header.Answer{Minor: 1, Upgrade: true})
	h.up.In.Take(n)
	if err := h.flush(); err != nil {
		h.drop()
		return err
	}
	h.giveOut()
	defer h.drop()
	h.up.Uncount() // the client's connection counts for both, as with every tunnel
	var in, out atomic.Int64
	err := h.s.p.tunnels.Relay(tunnel.End{Conn: h.s.client, In: &h.in, Read: &out}, tunnel.End{Conn: h.up.NetConn, In: &h.up.In, Read: &in}, h.ruling.masking(h.s.client), h.s.box.ID)
	h.x.event.BytesIn, h.x.event.BytesOut = in.Load(), out.Load()
	h.x.failed(err)
	return errClose
}

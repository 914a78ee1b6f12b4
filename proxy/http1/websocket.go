package http1

import (
	"sync/atomic"

	"boxgate/relay"
)

// Tunnel implements [relay.Side]. It forwards the 101 and then relays bytes both ways between the client and the upstream.
// The request stays published: a later policy that denies it cuts the tunnel. n is the length of the response's head.
func (h *conn) Tunnel(n int) error {
	h.Out.Buf = relay.AppendResponse(h.Out.Take(), &h.Res, relay.Answer{Minor: 1, Upgrade: true}, h)
	h.up.In.Take(n)
	if err := h.Flush(); err != nil {
		h.Drop()
		return err
	}
	h.Out.Give()
	defer h.Drop()
	h.up.Uncount() // the client's connection counts for both, as for every tunnel
	var in, out atomic.Int64
	toServer, end := h.s.Searched(h.ctx, &h.decision, h.up.NetConn)
	defer end()
	err := h.s.Core.Tunnels.Relay(
		relay.End{Conn: h.Conn, To: h.decision.Masking(h.Conn), In: &h.In, Read: &out},
		relay.End{Conn: h.up.NetConn, To: toServer, In: &h.up.In, Read: &in}, h.s.Box.ID)
	h.x.Event.BytesIn, h.x.Event.BytesOut = in.Load(), out.Load()
	h.x.Broken(err)
	return errClose
}

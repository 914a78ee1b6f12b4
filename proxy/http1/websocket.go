package http1

import (
	"sync/atomic"

	"boxgate/proxy/header"
	"boxgate/proxy/tunnel"
)

// tunnel forwards the 101 and then relays bytes both ways between the client and that upstream. The request stays
// published: a later policy that denies it cuts the tunnel. n is the length of the response's head.
func (h *conn) tunnel(n int) error {
	h.out = header.AppendResponse(h.takeOut(), &h.res, header.Answer{Minor: 1, Upgrade: true})
	h.up.In.Take(n)
	if err := h.flush(); err != nil {
		h.drop()
		return err
	}
	h.giveOut()
	defer h.drop()
	h.up.Uncount() // the client's connection counts for both, as for every tunnel
	var in, out atomic.Int64
	toServer, end := h.s.Searched(h.ctx, &h.ruling, h.up.NetConn)
	defer end()
	err := h.s.Core.Tunnels.Relay(
		tunnel.End{Conn: h.s.Client, To: h.ruling.Masking(h.s.Client), In: &h.in, Read: &out},
		tunnel.End{Conn: h.up.NetConn, To: toServer, In: &h.up.In, Read: &in}, h.s.Box.ID)
	h.x.Event.BytesIn, h.x.Event.BytesOut = in.Load(), out.Load()
	h.x.Broken(err)
	return errClose
}

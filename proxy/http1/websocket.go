package http1

import (
	"sync/atomic"

	"boxgate/proxy/header"
	"boxgate/proxy/tunnel"
)

// tunnel answers 101 and passes the bytes of an upgraded connection both ways, to that upstream and nowhere else. The
// request stays published: a policy that denies it later cuts the tunnel. n is the length of the response's head.
func (h *conn) tunnel(n int) error {
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
	err := h.s.Core.Tunnels.Relay(tunnel.End{Conn: h.s.Client, In: &h.in, Read: &out}, tunnel.End{Conn: h.up.NetConn, In: &h.up.In, Read: &in}, h.ruling.Masking(h.s.Client), h.s.Box.ID)
	h.x.Event.BytesIn, h.x.Event.BytesOut = in.Load(), out.Load()
	h.x.Failed(err)
	return errClose
}

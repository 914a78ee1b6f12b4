package balancer

import (
	"net"
	"net/netip"
	"slices"
	"time"
)

// List are the networks of balancers. An empty list trusts no one.
type List []netip.Prefix

// Has reports whether a connection comes from a balancer.
func (l List) Has(c net.Conn) bool {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok || len(l) == 0 {
		return false
	}
	from := tcp.AddrPort().Addr().Unmap().WithZone("")
	return slices.ContainsFunc(l, func(p netip.Prefix) bool { return p.Contains(from) })
}

// Accept reads the header of a connection from a balancer, until a deadline. The result has the visitor's address.
func Accept(c net.Conn, deadline time.Time) (net.Conn, error) {
	_ = c.SetReadDeadline(deadline)
	h, err := Read(c)
	if err != nil {
		return nil, err
	}
	_ = c.SetReadDeadline(time.Time{})
	if !h.From.IsValid() {
		return c, nil
	}
	return &conn{Conn: c, from: net.TCPAddrFromAddrPort(h.From)}, nil
}

// conn is a connection with the address of the balancer's client.
type conn struct {
	net.Conn
	from net.Addr
}

// RemoteAddr implements [net.Conn].
func (c *conn) RemoteAddr() net.Addr { return c.from }

// NetConn returns the underlying connection.
func (c *conn) NetConn() net.Conn { return c.Conn }

package watch

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
)

// Canary listens on an address of the host that no box may reach, on an unused port, TCP and UDP.
type Canary struct {
	At     netip.Addr
	Port   uint16
	tcp    net.Listener
	udp    net.PacketConn
	prefix []byte
	boxes  []netip.Addr
	hitTCP atomic.Bool
	hitUDP atomic.Bool
}

// OpenCanary listens at addr. Only packets with a token or from the box count, because other hosts may scan this one.
func OpenCanary(addr netip.Addr, prefix []byte, box ...netip.Addr) (*Canary, error) {
	c := &Canary{At: addr, prefix: prefix, boxes: box}
	var errs []error
	for range 10 { // until a port is free for both protocols
		ln, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		if err != nil {
			return nil, fmt.Errorf("canary on %v: %w", addr, err)
		}
		port := ln.Addr().(*net.TCPAddr).AddrPort().Port()
		pc, err := net.ListenPacket("udp", netip.AddrPortFrom(addr, port).String())
		if err != nil {
			errs = append(errs, err, ln.Close())
			continue
		}
		c.tcp, c.udp, c.Port = ln, pc, port
		go c.accept()
		go c.receive()
		return c, nil
	}
	return nil, fmt.Errorf("canary on %v: %w", addr, errors.Join(errs...))
}

// Close stops listening.
func (c *Canary) Close() {
	_ = c.tcp.Close()
	_ = c.udp.Close()
}

// Reached reports whether traffic of the box arrived, by TCP or UDP.
func (c *Canary) Reached(tcp bool) bool {
	if tcp {
		return c.hitTCP.Load()
	}
	return c.hitUDP.Load()
}

func (c *Canary) accept() {
	for {
		conn, err := c.tcp.Accept()
		if err != nil {
			return
		}
		if c.isBox(conn.RemoteAddr()) {
			c.hitTCP.Store(true)
		}
		_ = conn.Close()
	}
}

func (c *Canary) receive() {
	buf := make([]byte, snap)
	for {
		n, from, err := c.udp.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && (c.isBox(from) || bytes.Contains(buf[:n], c.prefix)) {
			c.hitUDP.Store(true)
		}
	}
}

func (c *Canary) isBox(a net.Addr) bool {
	from, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return true
	}
	for _, b := range c.boxes {
		if from.Addr().Unmap() == b {
			return true
		}
	}
	return false
}

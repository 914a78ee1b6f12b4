// Package socket finds the TCP connection below a net.Conn and closes it so that the peer sees the intended end: a
// graceful close, a reset, or a close after the last message was read. [Direct] reads and writes such a connection, and
// [Owned] tracks its owner.
package socket

import (
	"io"
	"net"
	"time"
)

// TCP returns the TCP connection that c is or wraps.
func TCP(c net.Conn) (*net.TCPConn, bool) {
	switch c := c.(type) {
	case *net.TCPConn:
		return c, true
	case interface{ NetConn() net.Conn }:
		return TCP(c.NetConn())
	default:
		return nil, false
	}
}

// Reset closes connections with RST, so that their peers do not mistake the end for success.
func Reset(conns ...net.Conn) {
	for _, c := range conns {
		t, ok := TCP(c)
		if !ok {
			_ = c.Close()
			continue
		}
		_ = t.SetLinger(0) // fails only on a closed socket
		_ = t.Close()      // not c: a TLS close_notify would signal success
	}
}

// Abort interrupts all pending reads and writes of the connections. It never blocks: TLS sends no close_notify.
func Abort(conns ...net.Conn) {
	for _, c := range conns {
		if tcp, ok := TCP(c); ok {
			_ = tcp.Close()
			continue
		}
		_ = c.Close()
	}
}

// CloseWrite closes the sending side of c. Reads continue to work.
func CloseWrite(c net.Conn) {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
	} else if tcp, ok := TCP(c); ok {
		_ = tcp.CloseWrite()
	}
}

const (
	// LingerTime bounds how long [LingeringClose] reads, and how long sending a last message may take.
	LingerTime  = 500 * time.Millisecond
	lingerBytes = 64 << 10
)

// LingeringClose closes a connection whose last message the peer must be able to read. Closing a socket with unread
// data resets it, and the reset can overtake that message (RFC 9112, section 9.6). So it closes the sending side first
// and briefly reads the remaining data.
func LingeringClose(c *net.TCPConn) {
	_ = c.CloseWrite()
	_ = c.SetReadDeadline(time.Now().Add(LingerTime))
	_, _ = io.CopyN(io.Discard, struct{ io.Reader }{c}, lingerBytes)
	_ = c.Close()
}

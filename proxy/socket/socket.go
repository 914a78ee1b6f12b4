// Package socket finds the TCP connection below a net.Conn and ends it the way its peer must see it: in order, by a reset,
// or after the peer could read what was said last.
package socket

import (
	"io"
	"net"
	"time"
)

// TCP returns the TCP connection that c is, or stands in front of.
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

// Reset closes connections so that their peers see RST, not an orderly end that they might take for success.
func Reset(conns ...net.Conn) {
	for _, c := range conns {
		t, ok := TCP(c)
		if !ok {
			_ = c.Close()
			continue
		}
		_ = t.SetLinger(0) // fails only on a socket that is closed already
		_ = t.Close()      // not c: the close_notify of TLS would say that all is well
	}
}

// Abort ends every read and write in progress on the connections. It waits for no peer: TLS sends no close_notify.
func Abort(conns ...net.Conn) {
	for _, c := range conns {
		if tcp, ok := TCP(c); ok {
			_ = tcp.Close()
			continue
		}
		_ = c.Close()
	}
}

// CloseWrite announces the end of what is sent on c. What the peer still sends can be read.
func CloseWrite(c net.Conn) {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
	} else if tcp, ok := TCP(c); ok {
		_ = tcp.CloseWrite()
	}
}

const (
	// LingerTime is how long [LingeringClose] listens, and how long a last message may take to be sent.
	LingerTime  = 500 * time.Millisecond
	lingerBytes = 64 << 10
)

// LingeringClose closes a connection whose last message the peer must be able to read. Closing a socket with unread bytes
// resets it, and a reset can overtake what was sent, so the end is announced first and what still comes is read for a moment.
func LingeringClose(c *net.TCPConn) {
	_ = c.CloseWrite()
	_ = c.SetReadDeadline(time.Now().Add(LingerTime))
	_, _ = io.CopyN(io.Discard, struct{ io.Reader }{c}, lingerBytes)
	_ = c.Close()
}

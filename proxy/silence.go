package proxy

import (
	"bytes"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"

	"boxgate/proxy/h2"
)

// This file is about clients that say nothing. On most ports they are let through to the address, as the server may be
// the one to speak first. Where names decide, silence must not be a way to speak later and unread.

// serverSpoke waits until one side has said something, or ended, and reports whether the server has. Nothing is taken
// from either socket. It is false as well when neither has within the idle timeout, and when the server speaks HTTP/2 in
// the clear: its settings may come first (RFC 9113, 3.4), and the requests after them.
func (c *conn) serverSpoke(upstream *net.TCPConn) (server bool) {
	deadline := time.Now().Add(c.p.cfg.IdleTimeout)
	_, _ = c.tcp.SetReadDeadline(deadline), upstream.SetReadDeadline(deadline)
	var both sync.WaitGroup
	both.Go(func() {
		server = readable(upstream)
		_ = c.tcp.SetReadDeadline(time.Unix(1, 0)) // wakes the other
	})
	readable(c.tcp)
	_ = upstream.SetReadDeadline(time.Unix(1, 0))
	both.Wait()
	_, _ = c.tcp.SetReadDeadline(time.Time{}), upstream.SetReadDeadline(time.Time{})
	return server && !greetsHTTP2(upstream)
}

// greetsHTTP2 reports whether what has arrived from a server is, or may become, the SETTINGS frame that HTTP/2 begins with.
// It stays to be read.
func greetsHTTP2(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	var b [h2.FrameHead]byte
	n := 0
	if raw.Control(func(fd uintptr) { n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT) }) != nil || err != nil {
		return false // it has gone
	}
	settings := []byte{0, b[1], b[2], byte(http2.FrameSettings), 0, 0, 0, 0, 0}
	return n > 0 && bytes.Equal(b[:n], settings[:n])
}

// readable waits until there is something to read from a socket, its end included, or its read deadline has passed.
func readable(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var b [1]byte
	ready := false
	err = raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		ready = err != unix.EAGAIN && err != unix.EINTR
		return ready
	})
	return err == nil && ready
}

package proxy

import (
	"bytes"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"

	"boxgate/relay/h2"
)

// This file handles clients that are silent at first. On most ports they are connected to the address, as the server may
// speak first. Where names decide, silence must not become a way to send unjudged bytes later.

// serverSpoke waits until one side has sent something or closed, and reports whether it was the server. It does not
// consume data of either socket. It returns false if neither side does within the idle timeout, and if the server speaks HTTP/2 in
// cleartext: its SETTINGS may come first (RFC 9113, 3.4), followed by the client's requests, which must be judged.
func serverSpoke(client, upstream *net.TCPConn, idle time.Duration) (server bool) {
	deadline := time.Now().Add(idle)
	_, _ = client.SetReadDeadline(deadline), upstream.SetReadDeadline(deadline)
	var both sync.WaitGroup
	both.Go(func() {
		server = readable(upstream)
		_ = client.SetReadDeadline(time.Unix(1, 0)) // wakes the other goroutine
	})
	readable(client)
	_ = upstream.SetReadDeadline(time.Unix(1, 0))
	both.Wait()
	_, _ = client.SetReadDeadline(time.Time{}), upstream.SetReadDeadline(time.Time{})
	return server && !greetsHTTP2(upstream)
}

// greetsHTTP2 reports whether the server's first bytes are, or may become, the SETTINGS frame that opens an HTTP/2
// connection. It does not consume them.
func greetsHTTP2(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	var b [h2.FrameHead]byte
	n := 0
	if raw.Control(func(fd uintptr) { n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT) }) != nil || err != nil {
		return false // closed
	}
	settings := []byte{0, b[1], b[2], byte(http2.FrameSettings), 0, 0, 0, 0, 0}
	return n > 0 && bytes.Equal(b[:n], settings[:n])
}

// readable waits until a socket has data to read or has reached its end, or its read deadline passes.
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

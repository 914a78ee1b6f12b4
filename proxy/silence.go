package proxy

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// This file is about clients that say nothing. On most ports they are let through to the address, as the server may be
// the one to speak first. Where names decide, silence must not be a way to speak later and unread.

// namesDecide reports whether what the client says is judged by the name in it although the address is allowed.
func (c *conn) namesDecide() bool {
	return !slices.Contains(serverFirst, c.port) && c.box.Policy.Load().NamesDecide(c.port)
}

// owesName reports whether a client that was silent so far has to give a name if it is the first to speak after all.
func (c *conn) owesName(f first) bool { return f.kind == kindSilent && !f.eof && c.namesDecide() }

// serverSpoke waits until one side has said something, or ended, and reports whether the server has. Nothing is taken
// from either socket. It is false as well when neither has within the idle timeout.
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
	return server
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

// almostHTTP reports whether bytes that are no request line of HTTP/1 may pass for one with a lenient server: empty lines
// before it, odd white space or no version in it, or the preface of HTTP/2.
func almostHTTP(data []byte) bool {
	data = bytes.TrimLeft(data, "\r\n\t\v\f \x00")
	end := bytes.IndexFunc(data, func(r rune) bool { return !methodRune(r) })
	if end < 0 {
		end = len(data)
	}
	_, known := webMethods[string(bytes.ToUpper(data[:min(end, maxMethod)]))]
	return known
}

// webMethods are those that servers of the web know (RFC 9110, 9; RFC 5789; RFC 4918; RFC 9113, 3.4).
var webMethods = map[string]struct{}{
	"GET": {}, "HEAD": {}, "POST": {}, "PUT": {}, "DELETE": {}, "CONNECT": {}, "OPTIONS": {}, "TRACE": {}, "PATCH": {}, "PRI": {},
	"PROPFIND": {}, "PROPPATCH": {}, "MKCOL": {}, "COPY": {}, "MOVE": {}, "LOCK": {}, "UNLOCK": {}, "REPORT": {}, "SEARCH": {},
}

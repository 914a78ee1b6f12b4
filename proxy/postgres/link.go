package postgres

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
)

// Link is a connection between a box and a server that was logged in to for it.
type Link struct {
	Client net.Conn   // the box, inside TLS if it asked for that
	Server *Server    // checks what is written to it
	Addr   netip.Addr // of the server
	key    cancel     // of the gateway's own; none if the server gave none
	forget func()     // the key
}

func (s *Session) link(of *server) *Link {
	l := &Link{Client: s.Client, Server: &Server{Conn: of.conn, in: of.in}, Addr: of.addr, forget: func() {}}
	if len(of.key) > 0 {
		n := shortKey
		if of.minor >= longKeys {
			n = longKey
		}
		l.key = s.Keys.add(s.Box, backend{s.Authority, of.addr, of.process, of.key}, n)
		l.forget = func() { s.Keys.remove(s.Box, s.Authority, l.key) }
	}
	return l
}

// Close closes the connection to the server and forgets the key with which the box could cancel what it does.
func (l *Link) Close() {
	l.forget()
	_ = l.Server.NetConn().Close() // not the TLS connection: that waits for the server
}

// Server is the server's end of a link. Writes fail once they are not messages that a client may send after it was logged
// in, before any byte of the message with which that begins.
type Server struct {
	*tls.Conn
	in io.Reader

	head [5]byte
	n    int    // of head, that were written
	rest uint32 // of the body of the message
}

// ErrMessage is returned for messages that a client may not send once it is logged in.
var ErrMessage = errors.New("the box sent a message that has no place after the login")

// Read implements [net.Conn].
func (c *Server) Read(p []byte) (int, error) { return c.in.Read(p) }

// clientMessages are the types of the messages that a client sends once it is logged in: Bind, Close, CopyData, CopyDone,
// CopyFail, Describe, Execute, Flush, FunctionCall, Parse, Query, Sync, Terminate. A password is not among them.
var clientMessages = []byte("BCdcfDEHFPQSX")

// Write implements [net.Conn].
func (c *Server) Write(p []byte) (int, error) {
	if !c.follow(p) {
		return 0, ErrMessage
	}
	return c.Conn.Write(p)
}

// follow finds the messages in what is sent, and reports whether all may be.
func (c *Server) follow(p []byte) bool {
	for len(p) > 0 {
		if c.rest > 0 {
			n := min(len(p), int(c.rest))
			p, c.rest = p[n:], c.rest-uint32(n)
			continue
		}
		n := copy(c.head[c.n:], p)
		p, c.n = p[n:], c.n+n
		if bytes.IndexByte(clientMessages, c.head[0]) < 0 {
			return false
		}
		if c.n < len(c.head) {
			continue
		}
		length := binary.BigEndian.Uint32(c.head[1:])
		if length < 4 {
			return false
		}
		c.n, c.rest = 0, length-4
	}
	return true
}

package socket

import (
	"crypto/tls"
	"errors"
	"net"
)

const (
	// LongestRecord is the most that a record of TLS has, in bytes.
	LongestRecord = 18 << 10
	// handshakeRest is the most that a client sends in a handshake after its first ClientHello and one more of the same length.
	handshakeRest = 8 << 10
)

// errHandshakeSize ends a connection whose client sends longer messages of the handshake than any client needs. crypto/tls gathers up to
// 256 KB of a message that claims to be a certificate, at any time, before it notices that it has asked for none.
var errHandshakeSize = errors.New("the client sends a message of the handshake that is too long")

// Terminated is the server's side of a connection by TLS. It bounds what may be read before something comes of it: the handshake is
// complete, or content is returned. Create it with [Terminate]. Safe for one reader and one writer at a time.
type Terminated struct {
	*tls.Conn
	wire *bounded
}

// Terminate returns the server's side of a connection whose client begins with a ClientHello of at most so many bytes.
// [Terminated.Established] must follow the handshake.
func Terminate(client net.Conn, hello int, cfg *tls.Config) *Terminated {
	wire := &bounded{Conn: client, most: 2*hello + handshakeRest}
	return &Terminated{tls.Server(wire, cfg), wire}
}

// Established notes that the handshake is complete.
func (t *Terminated) Established() { t.wire.most, t.wire.got = LongestRecord, 0 }

// Read reads content.
func (t *Terminated) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if n > 0 {
		t.wire.got = 0
	}
	return n, err
}

// bounded is what crypto/tls reads a client's connection from. It gives it no more than a record at a time, as crypto/tls keeps what it has
// read beyond one.
type bounded struct {
	net.Conn
	most, got int
}

// Read reads from the client.
func (b *bounded) Read(p []byte) (int, error) {
	if b.got > b.most {
		return 0, errHandshakeSize
	}
	n, err := b.Conn.Read(p[:min(len(p), LongestRecord)])
	b.got += n
	return n, err
}

// NetConn returns the connection below.
func (b *bounded) NetConn() net.Conn { return b.Conn }

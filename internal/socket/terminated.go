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
	// serverHandshake is the most that a server sends in a handshake. Chains of certificates, with what proves their logging, have less
	// than 32 KiB.
	serverHandshake = 64 << 10
)

// errHandshakeSize ends a connection whose client sends longer messages of the handshake than any client needs. crypto/tls gathers up to
// 256 KB of a message that claims to be a certificate, at any time, before it notices that it has asked for none.
var errHandshakeSize = errors.New("the client sends a message of the handshake that is too long")

// errServerSize is the same for servers, of which crypto/tls asks for a certificate: their chains have a tenth of that.
var errServerSize = errors.New("the server sends a message of the handshake that is too long")

// Terminated is the gateway's side of a connection by TLS. It bounds what may be read before something comes of it: the handshake is
// complete, or content is returned. Create it with [Terminate] or [Initiate]. Safe for one reader and one writer at a time.
type Terminated struct {
	*tls.Conn
	wire *bounded
}

// Terminate returns the server's side of a connection whose client begins with a ClientHello of at most so many bytes.
// [Terminated.Established] must follow the handshake.
func Terminate(client net.Conn, hello int, cfg *tls.Config) *Terminated {
	wire := &bounded{Conn: client, most: 2*hello + handshakeRest, then: LongestRecord, err: errHandshakeSize}
	return &Terminated{tls.Server(wire, cfg), wire}
}

// Initiate returns the client's side of a connection to a server. [Terminated.Established] must follow the handshake. A server may have
// another handshake made later, if the configuration allows it.
func Initiate(server net.Conn, cfg *tls.Config) *Terminated {
	wire := &bounded{Conn: server, most: serverHandshake, then: serverHandshake, err: errServerSize}
	return &Terminated{tls.Client(wire, cfg), wire}
}

// Established notes that the handshake is complete.
func (t *Terminated) Established() { t.wire.most, t.wire.got = t.wire.then, 0 }

// Read reads content.
func (t *Terminated) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if n > 0 {
		t.wire.got = 0
	}
	return n, err
}

// bounded is what crypto/tls reads a peer's connection from. It gives it no more than a record at a time, as crypto/tls keeps what it has
// read beyond one.
type bounded struct {
	net.Conn
	most, got int
	then      int // most, once the handshake is complete
	err       error
}

// Read reads from the peer.
func (b *bounded) Read(p []byte) (int, error) {
	if b.got > b.most {
		return 0, b.err
	}
	n, err := b.Conn.Read(p[:min(len(p), LongestRecord)])
	b.got += n
	return n, err
}

// NetConn returns the connection below.
func (b *bounded) NetConn() net.Conn { return b.Conn }

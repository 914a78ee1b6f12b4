package proxy

import (
	"crypto/tls"
	"errors"
	"net"

	"boxgate/proxy/usage"
)

// oneRead is the most that crypto/tls is given at a time: it keeps what it has read beyond a record.
const oneRead = usage.LongestRecord

// errHandshakeSize ends a connection whose client sends longer messages of the handshake than it is charged for. crypto/tls gathers up to
// 256 KB of a message that claims to be a certificate, at any time, before it notices that it has asked for none.
var errHandshakeSize = errors.New("the client sends a message of the handshake that is too long")

// bounded is what crypto/tls reads a client's connection from. It bounds what may be read before something comes of it: the handshake is
// complete, or content is returned. Safe for one reader and one writer at a time.
type bounded struct {
	net.Conn
	most, got int
}

// Read reads from the client.
func (b *bounded) Read(p []byte) (int, error) {
	if b.got > b.most {
		return 0, errHandshakeSize
	}
	n, err := b.Conn.Read(p[:min(len(p), oneRead)])
	b.got += n
	return n, err
}

// NetConn returns the connection below.
func (b *bounded) NetConn() net.Conn { return b.Conn }

// terminated is a connection whose TLS is terminated.
type terminated struct {
	*tls.Conn
	wire *bounded
}

// Read reads content.
func (t *terminated) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if n > 0 {
		t.wire.got = 0
	}
	return n, err
}

// established bounds what is read for each piece of content.
func (t *terminated) established() {
	t.wire.most, t.wire.got = usage.LongestRecord, 0
}

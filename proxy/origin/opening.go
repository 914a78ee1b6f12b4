package origin

import (
	"bytes"
	"crypto/tls"
	"net"
	"sync/atomic"

	"golang.org/x/crypto/cryptobyte"

	"boxgate/proxy/problem"
)

// opening is a connection that notes what its peer says first.
type opening struct {
	net.Conn
	heard atomic.Bool
	start []byte // of what was read, up to maxStart bytes
}

// maxStart is enough for a ServerHello of TLS 1.2.
const maxStart = 2 << 10

// Read implements [net.Conn].
func (o *opening) Read(b []byte) (int, error) {
	n, err := o.Conn.Read(b)
	if n > 0 && !o.heard.Load() {
		o.heard.Store(true)
	}
	if o.start != nil {
		o.start = append(o.start, b[:min(n, maxStart-len(o.start))]...)
	}
	return n, err
}

// NetConn returns the connection below.
func (o *opening) NetConn() net.Conn { return o.Conn }

// ErrRenegotiation refuses a server that cannot tell a handshake from one that goes on with the session of another client.
var ErrRenegotiation = error(problem.Fixed("the server does not support secure renegotiation (RFC 5746): what another client says could become the beginning of the request"))

// verify refuses what crypto/tls accepts, but OpenSSL does not. It is for tls.Config.VerifyConnection.
//
// A server that makes new handshakes without RFC 5746 takes the request for the rest of what an attacker on the way has begun, who may be
// shown it with the headers that the gateway has set (CVE-2009-3555). Clients cannot tell whether such a server would.
func (o *opening) verify(cs tls.ConnectionState) error {
	if cs.Version < tls.VersionTLS13 && !renegotiatesSecurely(o.start) {
		return ErrRenegotiation
	}
	return problem.WeakKey(cs)
}

// renegotiatesSecurely reports whether a server says so in its ServerHello (RFC 5746, 3.4), with which start begins.
func renegotiatesSecurely(start []byte) bool {
	kind, body, ok := (&handshakeReader{in: bytes.NewReader(start)}).next()
	hello := cryptobyte.String(body)
	var session, extensions cryptobyte.String
	if !ok || kind != 2 || !hello.Skip(2+32) || !hello.ReadUint8LengthPrefixed(&session) || !hello.Skip(2+1) || !hello.ReadUint16LengthPrefixed(&extensions) {
		return false
	}
	for !extensions.Empty() {
		var id uint16
		var value cryptobyte.String
		if !extensions.ReadUint16(&id) || !extensions.ReadUint16LengthPrefixed(&value) {
			return false
		}
		if id == 0xff01 {
			return true
		}
	}
	return false
}

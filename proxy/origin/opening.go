package origin

import (
	"bytes"
	"crypto/tls"

	"golang.org/x/crypto/cryptobyte"

	"boxgate/proxy/problem"
)

// ErrRenegotiation refuses a server that cannot tell a handshake from one that goes on with the session of another client.
var ErrRenegotiation = error(problem.Fixed("the server does not support secure renegotiation (RFC 5746): what another client says could become the beginning of the request"))

// verify refuses what crypto/tls accepts, but OpenSSL does not. start are the first bytes that the server sent. It is for
// tls.Config.VerifyConnection.
//
// A server that makes new handshakes without RFC 5746 takes the request for the rest of what an attacker on the way has begun, who may be
// shown it with the headers that the gateway has set (CVE-2009-3555). Clients cannot tell whether such a server would.
func verify(cs tls.ConnectionState, start []byte) error {
	if cs.Version < tls.VersionTLS13 && !renegotiatesSecurely(start) {
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

package origin

import (
	"bytes"
	"crypto/tls"

	"golang.org/x/crypto/cryptobyte"

	"boxgate/proxy/problem"
)

// ErrRenegotiation refuses a server that cannot distinguish a new handshake from one that continues another client's
// session.
var ErrRenegotiation = error(problem.Fixed("the server does not support secure renegotiation (RFC 5746): what another client says could become the beginning of the request"))

// verify refuses servers that crypto/tls accepts, but OpenSSL does not. start is the beginning of the server's data. It is
// meant for tls.Config.VerifyConnection.
//
// A server that renegotiates without RFC 5746 may treat the request as the continuation of data that a man in the middle
// has sent, and reveal it with the headers that the gateway has set (CVE-2009-3555). Clients cannot detect whether a server
// would.
func verify(cs tls.ConnectionState, start []byte) error {
	if cs.Version < tls.VersionTLS13 && !renegotiatesSecurely(start) {
		return ErrRenegotiation
	}
	return problem.WeakKey(cs)
}

// renegotiatesSecurely reports whether the ServerHello at the beginning of start has the extension of RFC 5746, 3.4.
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

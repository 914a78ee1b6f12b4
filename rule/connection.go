package rule

import (
	"crypto/tls"

	"boxgate/policy/name"
)

// This file has the stages at which effects act on connections to servers, rather than on the content of requests. A rule has at most
// one effect for each of them: [Connections] finds them once, when a policy is compiled.

// Identity is implemented by effects that authenticate the gateway to a server in the TLS handshake. Implementations are comparable: equal
// ones make the same certificate of the same values.
type Identity interface {
	Effect
	Sourced
	// CertificateSource and KeySource name the secrets of the configuration that have the certificate and its private key. They may be the
	// same. The first is the one that the decision log names.
	CertificateSource() string
	KeySource() string
	// Certificate returns the certificate that these values of the two make, with its Leaf. The error shows nothing of them.
	Certificate(certificate, key name.Secret) (tls.Certificate, error)
}

// Connection is what the effects of one rule do to connections. The zero value changes nothing.
type Connection struct {
	Identity Identity // nil: none
}

// Connections returns what effects do to connections.
func Connections(effects []Effect) (c Connection) {
	for _, e := range effects {
		if i, ok := e.(Identity); ok {
			c.Identity = i
		}
	}
	return c
}

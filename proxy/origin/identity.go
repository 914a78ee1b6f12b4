package origin

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"time"

	"boxgate/policy/name"
	"boxgate/proxy/problem"
)

// Identity is a client certificate with its key, for authenticating the gateway to a server. Connections with an identity
// are used only for requests with the same one, and connections without for requests without.
type Identity struct {
	certificate tls.Certificate
	sum         [sha256.Size]byte // of certificate and key as configured
}

// NewIdentity returns an identity of a certificate with its Leaf, parsed from the values of two secrets.
func NewIdentity(pair tls.Certificate, certificate, key name.Secret) *Identity {
	h, text := sha256.New(), certificate.Reveal()
	_ = binary.Write(h, binary.BigEndian, uint64(len(text))) // writes to a hash never fail
	h.Write([]byte(text))
	h.Write([]byte(key.Reveal()))
	return &Identity{pair, [sha256.Size]byte(h.Sum(nil))}
}

// Expired reports whether the certificate has expired.
func (i *Identity) Expired(now time.Time) bool { return now.After(i.certificate.Leaf.NotAfter) }

// key returns a string that identifies the identity, or "" for nil.
func (i *Identity) key() string {
	if i == nil {
		return ""
	}
	return string(i.sum[:])
}

// ErrUnasked refuses a server that does not request the client certificate that requests to it require.
var ErrUnasked = error(problem.Fixed("the server does not ask for the client certificate"))

// present makes a handshake present the identity, if there is one, and returns a check to run after the handshake.
//
// The handshake neither resumes a session nor can be resumed: a session keeps the certificate that it began with, and
// clients store sessions by the server's name only.
func (i *Identity) present(c *tls.Config) (check func() error) {
	if i == nil {
		return func() error { return nil }
	}
	asked := false
	c.ClientSessionCache = nil
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		asked = true
		return &i.certificate, nil
	}
	return func() error {
		if !asked {
			return ErrUnasked
		}
		return nil
	}
}

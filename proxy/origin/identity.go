package origin

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"time"

	"boxgate/policy/name"
	"boxgate/proxy/problem"
)

// Identity is a client certificate with its key, by which the gateway authenticates to a server. Connections that were
// made with one carry no request that needs another, or none.
type Identity struct {
	certificate tls.Certificate
	sum         [sha256.Size]byte // of certificate and key as they were given
}

// NewIdentity returns an identity of a certificate, with its Leaf, that was made of the values of two secrets.
func NewIdentity(pair tls.Certificate, certificate, key name.Secret) *Identity {
	h, text := sha256.New(), certificate.Reveal()
	_ = binary.Write(h, binary.BigEndian, uint64(len(text))) // writes to a hash never fail
	h.Write([]byte(text))
	h.Write([]byte(key.Reveal()))
	return &Identity{pair, [sha256.Size]byte(h.Sum(nil))}
}

// Expired reports whether the certificate has expired.
func (i *Identity) Expired(now time.Time) bool { return now.After(i.certificate.Leaf.NotAfter) }

// key tells the identity from others; "" for none.
func (i *Identity) key() string {
	if i == nil {
		return ""
	}
	return string(i.sum[:])
}

// ErrUnasked refuses a server that would take requests without the certificate that they are to be sent with.
var ErrUnasked = error(problem.Fixed("the server does not ask for the client certificate"))

// present has a handshake present the identity, if there is one, and returns what to check once it has succeeded.
//
// Such a handshake neither resumes a session nor is resumed: a session stands for the certificate that it began with, and
// clients keep sessions by the name of the server alone.
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

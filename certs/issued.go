package certs

import (
	"crypto/tls"
	"sync"
	"time"

	"boxgate/internal/fault"
)

// serverRenew is how long before its expiry a public-URL certificate is renewed.
const serverRenew = 10 * 24 * time.Hour

// Issued serves one certificate of an authority for a fixed list of names and renews it ten days before it expires.
// Safe for concurrent use.
type Issued struct {
	ca    *Authority
	names []string
	now   func() time.Time

	mu   sync.Mutex
	cert *tls.Certificate
}

// NewIssued issues the first certificate for names (see [Authority.ServerCertificate]), so that an invalid name fails
// here and not at the first handshake.
func NewIssued(ca *Authority, names ...string) (*Issued, error) {
	cert, err := ca.ServerCertificate(names...)
	if err != nil {
		return nil, err
	}
	return &Issued{ca: ca, names: names, now: fault.Now, cert: cert}, nil
}

// isValidFor reports whether the certificate is valid for a host.
func (s *Issued) isValidFor(host string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cert.Leaf.VerifyHostname(host) == nil
}

// expires returns the expiry time of the certificate, renewed if it is due.
func (s *Issued) expires() time.Time {
	_, _ = s.GetCertificate(nil) // renews it if due
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cert.Leaf.NotAfter
}

// GetCertificate is for tls.Config. If a renewal fails, it serves the old certificate while that is valid.
func (s *Issued) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if now.Add(serverRenew).Before(s.cert.Leaf.NotAfter) {
		return s.cert, nil
	}
	fresh, err := s.ca.ServerCertificate(s.names...)
	if err == nil {
		s.cert = fresh
	} else if now.After(s.cert.Leaf.NotAfter) {
		return nil, err
	}
	return s.cert, nil
}

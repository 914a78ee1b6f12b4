package acme

import (
	"context"
	"crypto/tls"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"

	"boxgate/policy/name"
)

// Protocol is the application protocol of TLS-ALPN-01 (RFC 8737). A connection that has negotiated it serves nothing else.
const Protocol = acmez.ACMETLS1Protocol

// subject returns the subject of the certificate that a host is served with, or "" if it is served with none. All else
// comes after this decision.
func (m *Manager) subject(host string) string {
	if _, parent, _ := strings.Cut(host, "."); m.wildcard != "" && parent == m.cfg.Domain.String() {
		return m.wildcard
	}
	if !m.cfg.Served(host) {
		return ""
	}
	return host
}

// wanted reports whether the certificate of a subject is one that is served.
func (m *Manager) wanted(subject string) bool {
	return subject != "" && (subject == m.wildcard || m.subject(subject) == subject)
}

// GetCertificate is for tls.Config. In this order:
//
//  1. a name that is no public URL gets none (TLS alert unrecognized_name)
//  2. the certificate that answers a TLS-ALPN-01 challenge, if that is asked for
//  3. the certificate in memory
//  4. the one in the storage, or else of an issuer: the handshake waits for it, for [Config.Wait] at most. A host that
//     failed is not tried again for a while.
func (m *Manager) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	host, err := name.Parse(hello.ServerName)
	if err != nil {
		return nil, nil //nolint:nilerr // crypto/tls sends unrecognized_name
	}
	subject := m.subject(host.String())
	if subject == "" {
		return nil, nil // as above
	}
	if slices.Equal(hello.SupportedProtos, []string{Protocol}) {
		return m.challengeCertificate(hello, host.String())
	}
	if cert := m.cached(hello, subject); cert != nil {
		return cert, nil
	}
	err = m.await(hello.Context(), subject)
	if cert := m.cached(hello, subject); cert != nil {
		return cert, nil
	}
	return nil, errors.Join(errors.New("no certificate for "+host.String()), err)
}

// cached returns a certificate from memory, or nil if there is none that is valid now.
func (m *Manager) cached(hello *tls.ClientHelloInfo, subject string) *tls.Certificate {
	cert, err := certmagic.DefaultCertificateSelector(hello, m.cache.AllMatchingCertificates(subject))
	if err != nil || cert.Leaf == nil || time.Now().After(cert.Leaf.NotAfter) {
		return nil
	}
	return &cert.Certificate
}

// await waits until a certificate has been obtained, or could not be.
func (m *Manager) await(ctx context.Context, subject string) error {
	f, err := m.request(subject)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Wait)
	defer cancel()
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// challengeCertificate answers a TLS-ALPN-01 challenge that is under way.
func (m *Manager) challengeCertificate(hello *tls.ClientHelloInfo, host string) (*tls.Certificate, error) {
	if c, ok := certmagic.GetACMEChallenge(host); !ok || c.Type != acme.ChallengeTypeTLSALPN01 {
		return nil, nil // nobody is being asked about this name
	}
	return m.hosts.GetCertificate(hello)
}

// Challenge answers an HTTP-01 challenge that is under way: it returns the body for a path at a host.
func (m *Manager) Challenge(host, path string) (body string, ok bool) {
	if !m.cfg.Served(host) {
		return "", false
	}
	c, ok := certmagic.GetACMEChallenge(host)
	if !ok || c.Type != acme.ChallengeTypeHTTP01 || c.Identifier.Value != host || c.HTTP01ResourcePath() != path {
		return "", false
	}
	return c.KeyAuthorization, true
}

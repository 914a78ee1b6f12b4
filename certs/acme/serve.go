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

// Protocol is the application protocol of TLS-ALPN-01 (RFC 8737). A connection that negotiated it is not used for
// anything else.
const Protocol = acmez.ACMETLS1Protocol

// subject returns the subject of the certificate for a host, or "" if the host must not have one. Every other step
// depends on this decision.
func (m *Manager) subject(host string) string {
	if _, parent, _ := strings.Cut(host, "."); m.wildcard != "" && parent == m.cfg.Domain.String() {
		return m.wildcard
	}
	if !m.cfg.Served(host) {
		return ""
	}
	return host
}

// isServed reports whether the certificate of a subject is served.
func (m *Manager) isServed(subject string) bool {
	return subject != "" && (subject == m.wildcard || m.subject(subject) == subject)
}

// GetCertificate is for tls.Config. In this order:
//
//  1. A name that is not a public URL gets no certificate (TLS alert unrecognized_name).
//  2. A TLS-ALPN-01 challenge gets the certificate that answers it.
//  3. A certificate in memory is served.
//  4. The handshake waits, for at most [Config.Wait], for a certificate from the storage or an issuer. A host that
//     failed recently is not tried again.
func (m *Manager) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	host, err := name.Parse(hello.ServerName)
	if err != nil {
		return nil, nil //nolint:nilerr // crypto/tls sends unrecognized_name
	}
	subject := m.subject(host.String())
	if subject == "" {
		return nil, nil // sends unrecognized_name
	}
	if slices.Equal(hello.SupportedProtos, []string{Protocol}) {
		return m.challengeCertificate(hello, host.String())
	}
	if cert := m.cached(hello, subject); cert != nil {
		return cert, nil
	}
	err = m.awaitCertificate(hello.Context(), subject)
	if cert := m.cached(hello, subject); cert != nil {
		return cert, nil
	}
	return nil, errors.Join(errors.New("no certificate for "+host.String()), err)
}

// cached returns a certificate from memory, or nil without a valid one.
func (m *Manager) cached(hello *tls.ClientHelloInfo, subject string) *tls.Certificate {
	cert, err := certmagic.DefaultCertificateSelector(hello, m.cache.AllMatchingCertificates(subject))
	if err != nil || cert.Leaf == nil || time.Now().After(cert.Leaf.NotAfter) {
		return nil
	}
	return &cert.Certificate
}

// awaitCertificate waits until a certificate has been obtained or the attempt has failed.
func (m *Manager) awaitCertificate(ctx context.Context, subject string) error {
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

// challengeCertificate answers a pending TLS-ALPN-01 challenge.
func (m *Manager) challengeCertificate(hello *tls.ClientHelloInfo, host string) (*tls.Certificate, error) {
	if c, ok := certmagic.GetACMEChallenge(host); !ok || c.Type != acme.ChallengeTypeTLSALPN01 {
		return nil, nil // no challenge is pending for this name
	}
	return m.hostConfig.GetCertificate(hello)
}

// Challenge answers a pending HTTP-01 challenge: it returns the body for a path of a host. The challenges of other hosts are those in a
// shared storage.
func (m *Manager) Challenge(host, path string) (body string, ok bool) {
	if c, ok := certmagic.GetACMEChallenge(host); ok && m.cfg.Served(host) {
		return answer(c.Challenge, host, path)
	}
	return m.sharedChallenge(host, path)
}

// answer returns the body for a path of a host that a challenge is for.
func answer(c acme.Challenge, host, path string) (body string, ok bool) {
	if c.Type != acme.ChallengeTypeHTTP01 || c.Identifier.Value != host || c.HTTP01ResourcePath() != path {
		return "", false
	}
	return c.KeyAuthorization, true
}

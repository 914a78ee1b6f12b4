package acme

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/libdns/rfc2136"
	"github.com/mholt/acmez/v3/acme"
	"go.uber.org/zap"
)

// errNotServed refuses a certificate for a name that is not a public URL.
var errNotServed = errors.New("there is no such public URL")

// newConfig makes a configuration with the issuers in order. solver, if not nil, proves control by DNS-01 instead of
// the gateway's ports. It sets every field explicitly, because certmagic's defaults are shared by all users of the
// package.
func (m *Manager) newConfig(solver *certmagic.DNS01Solver) *certmagic.Config {
	config := certmagic.New(m.cache, certmagic.Config{
		Storage: m.cfg.Storage, Logger: m.cfg.Log, OnEvent: m.onEvent, ShouldEmitFunc: isCounted,
		RenewalWindowRatio: certmagic.DefaultRenewalWindowRatio, KeySource: certmagic.DefaultKeyGenerator,
		Issuers: []certmagic.Issuer{}, // set below, because an issuer needs its configuration
	})
	for n, i := range m.cfg.Issuers {
		template := i.template()
		template.Email, template.Logger = m.cfg.Email, m.cfg.Log
		if solver != nil {
			template.DNS01Solver = solver
		}
		template.DisableDistributedSolvers = !m.cfg.Shared // otherwise only this gateway's memory has the challenges
		template.listenAt(m.cfg.HTTP, m.cfg.HTTPS)
		issuer := certmagic.NewACMEIssuer(config, template.ACMEIssuer)
		if n == 0 {
			config.Issuers = append(config.Issuers, issuer)
		} else {
			config.Issuers = append(config.Issuers, fallback{issuer})
		}
	}
	return config
}

// fallback is an issuer that is tried after another one. When certmagic (v0.25.6) renews, it tells the issuer which
// certificate is replaced; a fallback issuer does not know the other issuer's certificate and refuses. fallback hides
// it.
type fallback struct{ *certmagic.ACMEIssuer }

// Issue implements [certmagic.Issuer].
func (f fallback) Issue(ctx context.Context, request *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	return f.ACMEIssuer.Issue(withoutCertificate{ctx}, request)
}

// withoutCertificate is a context that hides the replaced certificate, which certmagic stores as a value.
type withoutCertificate struct{ context.Context }

// Value implements [context.Context].
func (c withoutCertificate) Value(key any) any {
	value := c.Context.Value(key)
	if _, replaced := value.(*x509.Certificate); replaced {
		return nil
	}
	return value
}

// template is a certmagic.ACMEIssuer under construction.
type template struct{ certmagic.ACMEIssuer }

func (i *Issuer) template() *template {
	t := &template{certmagic.ACMEIssuer{CA: i.Directory, TrustedRoots: i.Roots, Agreed: true}}
	if i.KeyID != "" {
		t.ExternalAccount = &acme.EAB{KeyID: i.KeyID, MACKey: i.HMAC.Reveal()}
	}
	return t
}

// listenAt sets the addresses of the gateway's listeners. Otherwise certmagic would open the usual ports itself; it
// checks that the listeners are open before it relies on them.
func (t *template) listenAt(http, https netip.AddrPort) {
	t.DisableHTTPChallenge, t.DisableTLSALPNChallenge = !http.IsValid(), !https.IsValid()
	t.AltHTTPPort, t.AltTLSALPNPort = int(http.Port()), int(https.Port())
	if https.IsValid() {
		t.ListenHost = https.Addr().String()
	} else if http.IsValid() {
		t.ListenHost = http.Addr().String()
	}
}

// ttl is the TTL of challenge records.
const ttl = time.Minute

// solver solves DNS-01 by updates of the zone. It finds the zone by asking the server itself, so no resolver needs to
// know it. It does not check whether the zone's other servers have an update, because they may be reachable only for
// the issuer.
func (d *DNS01) solver(log *zap.Logger) *certmagic.DNS01Solver {
	return &certmagic.DNS01Solver{DNSManager: certmagic.DNSManager{
		DNSProvider: &rfc2136.Provider{Server: d.Server, KeyName: d.KeyName, KeyAlg: d.KeyAlgorithm, Key: d.Key.Reveal()},
		Resolvers:   []string{d.Server},
		TTL:         ttl, PropagationDelay: d.Propagation, PropagationTimeout: -1, Logger: log,
	}}
}

func isCounted(event string) bool {
	return event == "cert_obtaining" || event == "cert_obtained" || event == "cert_failed"
}

// onEvent refuses certificates that certmagic is about to request, and counts results.
func (m *Manager) onEvent(_ context.Context, event string, data map[string]any) error {
	subject, _ := data["identifier"].(string)
	switch event {
	case "cert_obtaining":
		if !m.isServed(subject) {
			return certmagic.ErrNoRetry{Err: fmt.Errorf("%s: %w", subject, errNotServed)}
		}
		if renewal, _ := data["renewal"].(bool); renewal || subject == m.wildcard {
			return nil
		}
		if err := m.cfg.Order(subject); err != nil {
			return certmagic.ErrNoRetry{Err: fmt.Errorf("%s: %w: %w", subject, errRefused, err)}
		}
	case "cert_obtained":
		m.count(func(c *Counts) { c.Obtained++ })
	case "cert_failed":
		m.count(func(c *Counts) { c.Failed++ })
	}
	return nil
}

func (m *Manager) count(add func(*Counts)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	add(&m.counts)
}

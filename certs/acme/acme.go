// Package acme obtains the certificates of public URLs from certificate authorities by ACME (RFC 8555), with certmagic.
//
// [New] makes a [Manager] and [Manager.Run] maintains what it serves. [Manager.GetCertificate] is the source of a
// tls.Config: it serves from memory, and for a host that has no certificate yet it has one obtained, once however many
// visitors ask, and makes them wait for it. Whether a host is a public URL is decided before anything else is: names that
// strangers make up reach neither the storage nor an issuer.
//
// An issuer proves control of a host by HTTP-01 ([Manager.Challenge]) or TLS-ALPN-01 ([Manager.GetCertificate]); control of
// the domain that URLs share, if [Config.DNS01] is set, by DNS-01. The Manager keeps what it obtains in a [certmagic.Storage],
// private keys included; [NewFiles] is one in a directory.
package acme

import (
	"context"
	"crypto/x509"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"boxgate/policy/name"
)

// Issuer is a certificate authority that speaks ACME.
type Issuer struct {
	Directory string         // URL of its directory
	Roots     *x509.CertPool // who vouches for the issuer's own server; nil: the system's roots
	// KeyID and HMAC bind the account to one at the issuer (RFC 8555, 7.3.4); HMAC is in base64url, as issuers show it.
	KeyID string
	HMAC  name.Secret
}

// DNS01 is a nameserver that accepts updates (RFC 2136) signed by TSIG (RFC 8945).
type DNS01 struct {
	Server       string // host:port of the zone's primary
	KeyName      string
	KeyAlgorithm string // such as hmac-sha256
	Key          name.Secret
	// Propagation is how long the zone's other servers may take to have an update.
	Propagation time.Duration
}

// Config is what [New] needs. All but DNS01, HTTP, HTTPS, Owner, Order, Failed and the times are required.
type Config struct {
	Email   string
	Issuers []Issuer // asked in this order until one issues
	Storage certmagic.Storage
	Domain  name.Name // URLs have names one label below it
	DNS01   *DNS01    // for a certificate for all those names; nil: each has a certificate of its own
	// HTTP and HTTPS are where the gateway listens; the zero value: nowhere, so the challenge of that port is not offered.
	HTTP, HTTPS netip.AddrPort
	// Served reports whether a host leads to a public URL now.
	Served func(host string) bool
	// Owner returns the owner of a host. Owners take turns in obtaining certificates. nil: all hosts have the same owner.
	Owner func(host string) string
	// Order is called before the first certificate of a host is ordered; an error refuses the order. It is not called for renewals,
	// because a certificate in use must not lapse. nil: no order is refused.
	Order func(host string) error
	// Failed is called after an attempt has failed that Order did not refuse. The issuer has then had one order more: after the first
	// way of validation has failed, the other one is tried with an order of its own. nil: nothing is called.
	Failed func(host string)
	Log    *zap.Logger

	// Wait is how long a TLS handshake may wait for a certificate; 0: 10 s.
	Wait time.Duration

	retry, check time.Duration // for tests; see defaults
}

const (
	// places bounds how many certificates are obtained at a time for hosts below the gateway's domain, and how many for other
	// hosts. An attempt for a host that leads to a tarpit holds its place until the issuer gives up, and a tenant can name hundreds
	// of such hosts, so owners take turns.
	places = 16
	// firstRetry is how long a host that failed is not tried again, doubled with each failure up to lastRetry.
	firstRetry, lastRetry = time.Minute, 6 * time.Hour
	// limitedRetry is that for a host whose issuer answered that a rate limit is reached. How long the issuer would like it to
	// be is not known here: certmagic does not hand on Retry-After.
	limitedRetry = time.Hour
	// obtainTime bounds one attempt with all issuers, and wildcardTime one for the wildcard, which waits for nameservers.
	obtainTime, wildcardTime = 2 * time.Minute, 5 * time.Minute
	// refusedRetry is how long a host is not tried again whose order was refused ([Config.Order]).
	refusedRetry = 5 * time.Minute
	// checkTime is how often certificates are looked at for renewal.
	checkTime = 10 * time.Minute
)

// Manager obtains, renews and serves certificates. Safe for concurrent use.
type Manager struct {
	cfg      Config
	wildcard string // the subject of the certificate for all URLs below the domain; "" without DNS01

	cache        *certmagic.Cache
	hosts        *certmagic.Config
	shared       *certmagic.Config // for the wildcard; nil without one
	own, foreign *turns            // for hosts below the gateway's domain, and for others

	ending context.Context
	end    context.CancelFunc
	tasks  sync.WaitGroup
	ended  func()

	mu      sync.Mutex
	flights map[string]*flight
	failed  map[string]failure
	held    map[string]bool // subjects with a certificate in the cache
	counts  Counts
}

// Counts are how often certificates were asked for.
type Counts struct{ Obtained, Failed uint64 }

// New makes a Manager that serves nothing yet. Call [Manager.Close] when it is no longer needed.
func New(cfg Config) (*Manager, error) {
	if cfg.Email == "" || len(cfg.Issuers) == 0 || cfg.Storage == nil || cfg.Served == nil || cfg.Log == nil || cfg.Domain.IsZero() {
		return nil, errors.New("acme: Email, Issuers, Storage, Domain, Served and Log are required")
	}
	cfg.defaults()
	m := &Manager{
		cfg: cfg, own: newTurns(places), foreign: newTurns(places), flights: map[string]*flight{}, failed: map[string]failure{}, held: map[string]bool{},
	}
	m.ending, m.end = context.WithCancel(context.Background())
	m.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert:   func(c certmagic.Certificate) (*certmagic.Config, error) { return m.configOf(c.Names[0]), nil },
		RenewCheckInterval: cfg.check, Logger: cfg.Log,
	})
	m.ended = sync.OnceFunc(m.stop)
	m.hosts = m.newConfig(nil)
	if cfg.DNS01 != nil {
		m.wildcard = "*." + cfg.Domain.String()
		m.shared = m.newConfig(cfg.DNS01.solver(cfg.Log))
	}
	return m, nil
}

func (c *Config) defaults() {
	if c.Owner == nil {
		c.Owner = func(string) string { return "" }
	}
	if c.Order == nil {
		c.Order = func(string) error { return nil }
	}
	if c.Failed == nil {
		c.Failed = func(string) {}
	}
	if c.Wait == 0 {
		c.Wait = 10 * time.Second
	}
	if c.retry == 0 {
		c.retry = firstRetry
	}
	if c.check == 0 {
		c.check = checkTime
	}
}

// configOf is how the certificate of a subject is obtained.
func (m *Manager) configOf(subject string) *certmagic.Config {
	if subject == m.wildcard && m.shared != nil {
		return m.shared
	}
	return m.hosts
}

// Close ends what is being obtained, and returns when nothing of it runs any more. It may be called more than once.
func (m *Manager) Close() { m.ended() }

// stopTime is how long Close waits for certmagic, which may be fetching an OCSP response.
const stopTime = 5 * time.Second

func (m *Manager) stop() {
	m.mu.Lock() // no task begins after this
	m.end()
	m.mu.Unlock()
	m.tasks.Wait()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		m.cache.Stop()
	}()
	select {
	case <-stopped:
	case <-time.After(stopTime):
		m.cfg.Log.Warn("a certificate's OCSP response is still being fetched")
	}
}

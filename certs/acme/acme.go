// Package acme obtains the certificates of public URLs from certificate authorities by ACME (RFC 8555), with certmagic.
//
// [New] makes a [Manager], and [Manager.Run] maintains its certificates. [Manager.GetCertificate] is for a tls.Config:
// it serves from memory, and obtains a missing certificate while the visitors wait, once for all of them. It checks
// first whether the host is a public URL: names that strangers make up reach neither the storage nor an issuer.
//
// Issuers verify control of a host by HTTP-01 ([Manager.Challenge]) or TLS-ALPN-01 ([Manager.GetCertificate]), and
// control of the domain that URLs share, if [Config.DNS01] is set, by DNS-01. The Manager stores certificates and
// private keys in a [certmagic.Storage]; [NewFiles] implements it in a directory.
package acme

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"boxgate/policy/name"
)

// Issuer is a certificate authority that supports ACME.
type Issuer struct {
	Directory string         // URL of its directory
	Roots     *x509.CertPool // roots for the issuer's own server; nil: the system's
	// KeyID and HMAC bind the ACME account to an existing account at the issuer (RFC 8555, section 7.3.4). HMAC is in
	// base64url, as issuers display it.
	KeyID string
	HMAC  name.Secret
}

// DNS01 is a nameserver that accepts updates (RFC 2136) signed with TSIG (RFC 8945).
type DNS01 struct {
	Server       string // host:port of the zone's primary
	KeyName      string
	KeyAlgorithm string // such as hmac-sha256
	Key          name.Secret
	// Propagation is how long an update may take to reach the zone's other servers.
	Propagation time.Duration
}

// Config configures [New]. All fields but Shared, DNS01, HTTP, HTTPS, Owner, Order, Failed and the times are required.
type Config struct {
	Email   string
	Issuers []Issuer // tried in this order until one issues
	Storage certmagic.Storage
	// Shared: other hosts use the storage too. Each answers the HTTP-01 challenges of all.
	Shared bool
	Domain name.Name // URLs have names one label below it
	DNS01  *DNS01    // for a wildcard certificate for all those names; nil: each has its own certificate
	// HTTP and HTTPS are the gateway's listen addresses. If one is zero, the challenge of that port is not offered.
	HTTP, HTTPS netip.AddrPort
	// Served reports whether a host is currently a public URL.
	Served func(host string) bool
	// Owner returns the owner of a host. Owners take turns in obtaining certificates. nil: all hosts have the same
	// owner.
	Owner func(host string) string
	// Order is called before the first certificate of a host is ordered; an error refuses the order. It is not called
	// for renewals, because a certificate in use must not lapse. nil: no order is refused.
	Order func(host string) error
	// Failed is called after a failed attempt that Order did not refuse. Such an attempt takes one more order at the
	// issuer: when the first validation method has failed, the second is tried with a new order. May be nil.
	Failed func(host string)
	Log    *zap.Logger

	// Wait is how long a TLS handshake may wait for a certificate; 0: 10 s.
	Wait time.Duration

	retry, check time.Duration // for tests; see defaults
}

const (
	// maxConcurrent bounds the concurrent attempts for hosts below the gateway's domain, and for other hosts. An
	// attempt for a host that leads to a tarpit holds its place until the issuer gives up, and a tenant can name
	// hundreds of such hosts, so owners take turns.
	maxConcurrent = 16
	// firstRetry is the delay before the next attempt for a host after a failure. It doubles with each failure up to
	// lastRetry.
	firstRetry, lastRetry = time.Minute, 6 * time.Hour
	// limitedRetry is the minimum delay after an issuer reported a rate limit. The issuer's Retry-After is unknown
	// here: certmagic does not pass it on.
	limitedRetry = time.Hour
	// obtainTime bounds one attempt with all issuers, and wildcardTime one for the wildcard, which waits for
	// nameservers.
	obtainTime, wildcardTime = 2 * time.Minute, 5 * time.Minute
	// refusedRetry is the delay after a refused order ([Config.Order]).
	refusedRetry = 5 * time.Minute
	// checkTime is the interval between checks for renewal.
	checkTime = 10 * time.Minute
)

// Manager obtains, renews and serves certificates. Safe for concurrent use.
type Manager struct {
	cfg      Config
	wildcard string // the subject of the certificate for all URLs below the domain; "" without DNS01

	cache          *certmagic.Cache
	hostConfig     *certmagic.Config
	wildcardConfig *certmagic.Config // for the wildcard; nil without one
	own, others    *turns            // for hosts below the gateway's domain, and for others

	ctx       context.Context
	cancel    context.CancelFunc
	tasks     sync.WaitGroup
	closeOnce func()

	mu      sync.Mutex
	flights map[string]*flight
	failed  map[string]failure
	loaded  map[string]bool // subjects with a certificate in the cache
	counts  Counts

	looking chan struct{} // has a place for each challenge that is looked up in a shared storage
}

// Counts count attempts to obtain certificates.
type Counts struct{ Obtained, Failed uint64 }

// New makes a Manager without certificates. Call [Manager.Close] when it is no longer needed.
func New(cfg Config) (*Manager, error) {
	if cfg.Email == "" || len(cfg.Issuers) == 0 || cfg.Storage == nil || cfg.Served == nil || cfg.Log == nil || cfg.Domain.IsZero() {
		return nil, errors.New("acme: Email, Issuers, Storage, Domain, Served and Log are required")
	}
	cfg.defaults()
	m := &Manager{
		cfg: cfg, own: newTurns(maxConcurrent), others: newTurns(maxConcurrent), flights: map[string]*flight{}, failed: map[string]failure{}, loaded: map[string]bool{},
		looking: make(chan struct{}, maxLooking),
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert:   func(c certmagic.Certificate) (*certmagic.Config, error) { return m.configOf(c.Names[0]), nil },
		RenewCheckInterval: cfg.check, Logger: cfg.Log,
	})
	m.closeOnce = sync.OnceFunc(m.shutDown)
	m.hostConfig = m.newConfig(nil)
	if cfg.DNS01 != nil {
		m.wildcard = "*." + cfg.Domain.String()
		m.wildcardConfig = m.newConfig(cfg.DNS01.solver(cfg.Log))
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

// configOf returns the configuration for obtaining a subject's certificate.
func (m *Manager) configOf(subject string) *certmagic.Config {
	if subject == m.wildcard && m.wildcardConfig != nil {
		return m.wildcardConfig
	}
	return m.hostConfig
}

// Close cancels running attempts and returns when they have ended. Later calls are no-ops.
func (m *Manager) Close() { m.closeOnce() }

// stopTime is how long Close waits for certmagic, which may be fetching an OCSP response.
const stopTime = 5 * time.Second

func (m *Manager) shutDown() {
	m.mu.Lock() // no task begins after this
	m.cancel()
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

// files is certmagic's storage in files. Its locks are in memory: the store allows only one gateway per state
// directory, and a killed gateway must not leave a lock that the next one waits for.
type files struct {
	*certmagic.FileStorage

	mu    sync.Mutex
	locks map[string]chan struct{} // closed when the lock is released
}

// NewFiles makes a storage in a directory, which must be accessible only to its owner. The directory is created when
// something is stored.
func NewFiles(dir string) (certmagic.Storage, error) {
	info, err := os.Stat(dir)
	switch {
	case os.IsNotExist(err):
	case err != nil:
		return nil, err
	case !info.IsDir() || info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s holds private keys and must be a directory that only its owner may open: run chmod 700 %s", dir, dir)
	}
	return &files{FileStorage: &certmagic.FileStorage{Path: dir}, locks: map[string]chan struct{}{}}, nil
}

// Lock implements [certmagic.Locker].
func (f *files) Lock(ctx context.Context, name string) error {
	for {
		held := f.acquire(name)
		if held == nil {
			return nil
		}
		select {
		case <-held:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TryLock implements [certmagic.TryLocker].
func (f *files) TryLock(_ context.Context, name string) (bool, error) {
	return f.acquire(name) == nil, nil
}

// acquire takes a lock, or returns a channel that is closed when the current holder releases it.
func (f *files) acquire(name string) (held <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if lock, ok := f.locks[name]; ok {
		return lock
	}
	f.locks[name] = make(chan struct{})
	return nil
}

// Unlock implements [certmagic.Locker].
func (f *files) Unlock(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	lock, ok := f.locks[name]
	if !ok {
		return fmt.Errorf("the lock %q is not held", name)
	}
	delete(f.locks, name)
	close(lock)
	return nil
}

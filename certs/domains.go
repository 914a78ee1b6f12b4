package certs

import (
	"crypto/tls"
	"fmt"
	"maps"
	"os"
	"sync"
	"time"

	"boxgate/internal/fault"
	"boxgate/policy/name"
)

// Domains serves the certificates of public URLs from an authority: one for the shared domain, and one for each custom
// domain of a URL, made on first use. Safe for concurrent use.
type Domains struct {
	ca     *Authority
	shared *Issued
	served func(host string) bool

	mu     sync.Mutex
	custom map[string]*Issued // names are added only while served
}

// NewDomains issues the certificate for the shared names. served reports whether a public URL currently has that custom
// domain: no certificate is made or served for any other name.
func NewDomains(ca *Authority, served func(host string) bool, shared ...string) (*Domains, error) {
	issued, err := NewIssued(ca, shared...)
	if err != nil {
		return nil, err
	}
	return &Domains{ca: ca, shared: issued, served: served, custom: map[string]*Issued{}}, nil
}

// GetCertificate is for tls.Config. Names that are not custom domains get the shared certificate.
func (d *Domains) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	host, err := name.Parse(hello.ServerName)
	if err != nil || d.shared.isValidFor(host.String()) || !d.served(host.String()) {
		return d.shared.GetCertificate(hello)
	}
	issued, err := d.issuedFor(host.String())
	if err != nil {
		return nil, err
	}
	return issued.GetCertificate(hello)
}

// Expiries returns the expiry times of the served certificates. They are renewed before that.
func (d *Domains) Expiries() []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := []time.Time{d.shared.expires()}
	for host, issued := range d.custom {
		if d.served(host) {
			list = append(list, issued.expires())
		}
	}
	return list
}

// issuedFor returns the issuer for a domain. Whenever it adds one, it drops the ones no longer served.
func (d *Domains) issuedFor(host string) (*Issued, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if issued, ok := d.custom[host]; ok {
		return issued, nil
	}
	maps.DeleteFunc(d.custom, func(host string, _ *Issued) bool { return !d.served(host) })
	issued, err := NewIssued(d.ca, host)
	if err == nil {
		d.custom[host] = issued
	}
	return issued, err
}

// checkInterval is the minimum time between checks of the files.
const checkInterval = time.Second

// Files serves a certificate chain and its key from two PEM files, and reloads them when for instance an ACME client or
// a secret mount replaces them. Safe for concurrent use.
type Files struct {
	certFile, keyFile string
	failed            func(error)

	mu        sync.Mutex
	cert      *tls.Certificate
	seen      [2]fileState
	checkedAt time.Time
}

// fileState identifies a version of a file.
type fileState struct {
	modified time.Time
	size     int64
}

// NewFiles loads the files. failed, if not nil, is called when a later version does not load; the previous version then
// stays in use.
func NewFiles(certFile, keyFile string, failed func(error)) (*Files, error) {
	if failed == nil {
		failed = func(error) {}
	}
	f := &Files{certFile: certFile, keyFile: keyFile, failed: failed}
	var err error
	if f.seen, err = f.fileStates(); err != nil {
		return nil, err
	}
	if err := f.load(); err != nil {
		return nil, err
	}
	return f, nil
}

// GetCertificate is for tls.Config. It checks the files at most once a second.
func (f *Files) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.checkedAt) >= checkInterval {
		f.checkedAt = now
		f.refreshLocked()
	}
	return f.cert, nil
}

// Expiries returns when the certificate expires.
func (f *Files) Expiries() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cert.Leaf == nil {
		return nil
	}
	return []time.Time{f.cert.Leaf.NotAfter}
}

func (f *Files) refreshLocked() {
	seen, err := f.fileStates()
	if err == nil && seen == f.seen {
		return
	}
	if err == nil {
		err = f.load()
		f.seen = seen // a version that does not load is reported once and not retried
	}
	if err != nil {
		f.failed(err)
	}
}

func (f *Files) load() error {
	cert, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
	if err != nil {
		return fmt.Errorf("load certificate %s and key %s: %w", f.certFile, f.keyFile, err)
	}
	f.cert = &cert
	return nil
}

// fileStates is called before loading, so that a file written concurrently counts as changed at the next check.
func (f *Files) fileStates() ([2]fileState, error) {
	var states [2]fileState
	for i, name := range []string{f.certFile, f.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return states, fmt.Errorf("load certificate: %w", err)
		}
		states[i] = fileState{modified: info.ModTime(), size: info.Size()}
	}
	return states, nil
}

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

package certs

import (
	"crypto/tls"
	"maps"
	"sync"
	"time"

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

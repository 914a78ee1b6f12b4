package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

const (
	leafBackdate   = 7 * 24 * time.Hour  // for boxes whose clock is behind, such as resumed guests
	serverLifetime = 30 * 24 * time.Hour // of a public-URL certificate; browsers accept up to 398 days
)

// ServerCertificate issues a certificate for the given names with a new key, valid for 30 days. A name is a host name,
// "*.name" or an IP address.
func (a *Authority) ServerCertificate(names ...string) (*tls.Certificate, error) {
	if len(names) == 0 {
		return nil, errors.New("issue a server certificate: no names given")
	}
	key, err := newLeafKey()
	if err != nil {
		return nil, err
	}
	return a.issue(key, names, time.Now(), serverLifetime)
}

func newLeafKey() (*leafKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a leaf key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("make a leaf key: %w", err)
	}
	return &leafKey{key, public}, nil
}

// issue signs a leaf for exactly names. The chain is only the leaf: clients that trust it already have the authority.
func (a *Authority) issue(key *leafKey, names []string, now time.Time, lifetime time.Duration) (*tls.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	r := &request{serial: serial, commonName: commonName(names[0]), from: a.backdate(now), to: now.Add(lifetime)}
	for _, name := range names {
		if addr, err := netip.ParseAddr(name); err == nil {
			r.addresses = append(r.addresses, addr)
			continue
		}
		r.dns = append(r.dns, name)
	}
	der, err := a.sign(r, key.public)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate for %s: %w", strings.Join(names, ", "), err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate for %s: %w", strings.Join(names, ", "), err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key.PrivateKey, Leaf: leaf}, nil
}

// backdate returns the start of the validity of a certificate made now: a week ago, but not before its authority's.
func (a *Authority) backdate(now time.Time) time.Time {
	from := now.Add(-leafBackdate)
	if from.Before(a.cert.NotBefore) && now.After(a.cert.NotBefore) {
		return a.cert.NotBefore
	}
	return from
}

// commonName returns "" for a name that does not fit (X.520: 64 characters); the SAN contains it anyway.
func commonName(name string) string {
	if len(name) > 64 {
		return ""
	}
	return name
}

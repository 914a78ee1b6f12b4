package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

const (
	leafBackdate   = time.Hour           // for boxes whose clock is behind
	serverLifetime = 30 * 24 * time.Hour // of a public-URL certificate; browsers accept up to 398 days
)

// ServerCertificate issues a certificate for the given names, with a key of its own, valid for 30 days. A name is a host
// name, "*.name" or an IP address.
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

func newLeafKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a leaf key: %w", err)
	}
	return key, nil
}

// issue signs a leaf for exactly names. The chain is the leaf alone: clients that trust it already have the authority.
func (a *Authority) issue(key *ecdsa.PrivateKey, names []string, now time.Time, lifetime time.Duration) (*tls.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: commonName(names[0])},
		NotBefore:             now.Add(-leafBackdate),
		NotAfter:              now.Add(lifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	for _, name := range names {
		if addr, err := netip.ParseAddr(name); err == nil {
			template.IPAddresses = append(template.IPAddresses, addr.AsSlice())
			continue
		}
		template.DNSNames = append(template.DNSNames, name)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate for %s: %w", strings.Join(names, ", "), err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate for %s: %w", strings.Join(names, ", "), err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// commonName leaves the subject empty for a name that does not fit (X.520: 64 characters); the SAN carries it anyway.
func commonName(name string) string {
	if len(name) > 64 {
		return ""
	}
	return name
}

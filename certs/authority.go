package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
	"time"

	"boxgate/policy/name"
)

const (
	caLifetime = 10 * 365 * 24 * time.Hour
	caBackdate = leafBackdate // so that a box whose clock is behind accepts a new authority
)

// Authority is a certificate authority with an ECDSA P-256 key. It is immutable and safe for concurrent use.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA makes an authority with name in its subject, valid for ten years. It may sign one level of subordinate
// authorities, which the RSA authority of a box needs ([Minter.LeafFor]).
func NewCA(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a CA key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: clipCommonName(name), Organization: []string{"boxgate"}},
		NotBefore:             now.Add(-caBackdate),
		NotAfter:              now.Add(caLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLen:            1,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make CA certificate %q: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make CA certificate %q: %w", name, err)
	}
	return &Authority{cert: cert, key: key}, nil
}

// LoadCA parses the output of [Authority.CertificatePEM] and [Authority.KeyPEM]. It refuses a certificate that is not a
// CA certificate, a key that is not ECDSA P-256, and a key that does not match the certificate. Errors never quote the
// key.
func LoadCA(certPEM []byte, keyPEM name.Secret) (*Authority, error) {
	cert, err := parseCertificate(certPEM)
	if err != nil {
		return nil, err
	}
	if !cert.IsCA {
		return nil, errors.New("load CA: the certificate is not an authority's")
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("load CA: the key does not match the certificate")
	}
	return &Authority{cert: cert, key: key}, nil
}

func parseCertificate(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("load CA: no CERTIFICATE block")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("load CA certificate: %w", err)
	}
	return cert, nil
}

func parseKey(text name.Secret) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode([]byte(text.Reveal()))
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("load CA: no PRIVATE KEY block")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("load CA: the key does not parse as PKCS #8")
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("load CA: the key is not ECDSA P-256")
	}
	return key, nil
}

// Certificate returns the authority's certificate. The caller must not modify it.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// CertificatePEM returns the certificate for a trust store.
func (a *Authority) CertificatePEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// KeyPEM returns the private key as PKCS #8. Only the encrypted store may use it.
func (a *Authority) KeyPEM() (name.Secret, error) {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return name.Secret{}, fmt.Errorf("encode CA key: %w", err)
	}
	return name.NewSecret(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))), nil
}

// newSerial returns 127 random bits (RFC 5280, 4.1.2.2 allows 20 octets; CAs use at least 64 random bits).
func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}

// clipCommonName shortens a common name to the 64 characters that X.520 allows.
func clipCommonName(name string) string {
	if len(name) > 64 {
		return name[:64]
	}
	return name
}

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

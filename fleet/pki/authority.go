// Package pki has the authority of a fleet, the certificates of its hosts, the secrets sealed to hosts, and the tokens that let hosts
// join.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"time"

	"boxgate/policy/name"
)

// Lifetimes of certificates.
const (
	HostLifetime      = 24 * time.Hour
	authorityLifetime = 10 * 365 * 24 * time.Hour
	backdate          = time.Hour // for hosts whose clock is behind
)

// Authority signs the certificates of the hosts of one fleet. Immutable.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes the authority of a fleet, with an ECDSA P-256 key. It may sign hosts only.
func NewAuthority(fleet string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("the fleet's authority: %w", err)
	}
	serial, now := newSerial(), time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "fleet " + fleet, Organization: []string{"boxgate"}}, NotBefore: now.Add(-backdate), NotAfter: now.Add(authorityLifetime),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("the fleet's authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("the fleet's authority: %w", err)
	}
	return &Authority{cert, key}, nil
}

// LoadAuthority reads the results of [Authority.PEM] and [Authority.Key]. Errors do not quote the key.
func LoadAuthority(certificate []byte, key name.Secret) (*Authority, error) {
	cert, err := ParseCertificate(certificate)
	if err != nil {
		return nil, err
	}
	parsed, err := parseKey([]byte(key.Reveal()))
	if err != nil {
		return nil, err
	}
	if !cert.IsCA || !parsed.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("the fleet's authority: the key is that of another certificate")
	}
	return &Authority{cert, parsed}, nil
}

// ParseCertificate reads the certificate of an authority in PEM.
func ParseCertificate(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("the fleet's authority: no certificate in PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the fleet's authority: %w", err)
	}
	return cert, nil
}

// PEM returns the certificate.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Key returns the private key, PKCS #8 in DER.
func (a *Authority) Key() (name.Secret, error) {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	return name.NewSecret(string(der)), err
}

// Issue signs a certificate for a host: its ID as URN in the only subject alternative name, valid for [HostLifetime] from now.
func (a *Authority) Issue(host string, key *ecdsa.PrivateKey, now time.Time) (*tls.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: newSerial(), NotBefore: now.Add(-backdate), NotAfter: now.Add(HostLifetime), URIs: []*url.URL{{Scheme: "urn", Opaque: urnPrefix + host}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("the certificate of host %s: %w", host, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("the certificate of host %s: %w", host, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// urnPrefix is the namespace of the URN of a host, before its ID.
const urnPrefix = "boxgate:"

// newSerial returns 127 random bits (RFC 5280, 4.1.2.2).
func newSerial() *big.Int {
	bytes := make([]byte, 16)
	_, _ = rand.Read(bytes) // never fails (crypto/rand)
	bytes[0] = bytes[0]&0x7f | 0x40
	return new(big.Int).SetBytes(bytes)
}

// NewHostKey makes the key of a host's certificates, which stays the same as long as the host is a member. It returns the key in PKCS #8
// and its fingerprint, see [Fingerprint].
func NewHostKey() (der, fingerprint []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if der, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		return nil, nil, err
	}
	fingerprint, err = FingerprintOf(der)
	return der, fingerprint, err
}

// FingerprintOf returns the fingerprint of a key of [NewHostKey].
func FingerprintOf(der []byte) ([]byte, error) {
	key, err := parseKey(der)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(public)
	return sum[:], nil
}

// Fingerprint returns the SHA-256 of the public key of a certificate (SubjectPublicKeyInfo).
func Fingerprint(cert *x509.Certificate) []byte {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return sum[:]
}

// parseKey reads a key of [NewHostKey] or [Authority.Key].
func parseKey(der []byte) (*ecdsa.PrivateKey, error) {
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, errors.New("a key of the fleet is not readable") // err could quote it
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("a key of the fleet is not ECDSA P-256")
	}
	return key, nil
}

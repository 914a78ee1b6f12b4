package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
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

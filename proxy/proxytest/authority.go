package proxytest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Authority is a certificate authority for a test. Safe for concurrent use.
type Authority struct {
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey

	mu     sync.Mutex
	minted map[string]*tls.Certificate // by name, for certificates of one name
}

func newAuthority(t testing.TB) *Authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: fmt.Sprintf("test CA of %s %d", t.Name(), mrand.Uint64())},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{Cert: cert, key: key, minted: map[string]*tls.Certificate{}}
}

// Pool returns a pool that trusts the authority only.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Cert)
	return pool
}

// File writes the certificate to a PEM file, for programs that read one, and returns its path.
func (a *Authority) File(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Cert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Certificate returns a new server certificate for the names.
func (a *Authority) Certificate(t testing.TB, names ...string) tls.Certificate {
	t.Helper()
	cert, err := a.mint(names...)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (a *Authority) mint(names ...string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.Cert, &key.PublicKey, a.key)
	return tls.Certificate{Certificate: [][]byte{der, a.Cert.Raw}, PrivateKey: key}, err
}

// forName returns the certificate for a name, and creates it on first use.
func (a *Authority) forName(name string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.minted[name]; c != nil {
		return c, nil
	}
	c, err := a.mint(name)
	if err != nil {
		return nil, err
	}
	a.minted[name] = &c
	return &c, nil
}

// ForHello implements GetCertificate of [tls.Config] for any name.
func (a *Authority) ForHello(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return a.forName(hello.ServerName)
}

// LeafFor implements [proxy.Leaves].
func (a *Authority) LeafFor(_ context.Context, _ *tls.ClientHelloInfo, _ policy.BoxID, n name.Name) (*tls.Certificate, error) {
	return a.forName(n.String())
}

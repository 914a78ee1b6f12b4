package field

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"boxgate/bench/origin"
)

// Certificates are the files of two certificate authorities, one for the origins and one for the peers, each with a
// certificate for all names of the benchmarks. All keys are ECDSA on P-256.
type Certificates struct{ Upstream, Peers Authority }

// Authority lists the files of one authority.
type Authority struct{ CA, CAKey, Leaf, LeafKey, Both string }

func newCertificates(dir string) (c Certificates, err error) {
	if c.Upstream, err = newAuthority(filepath.Join(dir, "upstream")); err != nil {
		return c, err
	}
	c.Peers, err = newAuthority(filepath.Join(dir, "peers"))
	return c, err
}

func newAuthority(prefix string) (a Authority, err error) {
	a = Authority{prefix + "-ca.pem", prefix + "-ca.key", prefix + "-leaf.pem", prefix + "-leaf.key", prefix + "-both.pem"}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench " + filepath.Base(prefix)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	ca, caKey, err := issue(root, nil, nil)
	if err != nil {
		return a, err
	}
	parent, err := x509.ParseCertificate(ca.Bytes)
	if err != nil {
		return a, err
	}
	key, err := x509.ParsePKCS8PrivateKey(caKey.Bytes)
	if err != nil {
		return a, err
	}
	leaf, leafKey, err := issue(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: origin.Suffix}, DNSNames: []string{"*." + origin.Suffix, "*.fresh." + origin.Suffix},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, parent, key.(*ecdsa.PrivateKey))
	if err != nil {
		return a, err
	}
	return a, a.write(ca, caKey, leaf, leafKey)
}

// issue creates a key and a certificate for it, signed by parent. Without parent it is self-signed.
func issue(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (cert, key *pem.Block, err error) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if parent == nil {
		parent, signer = template, own
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(30*24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, own.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(own)
	return &pem.Block{Type: "CERTIFICATE", Bytes: der}, &pem.Block{Type: "PRIVATE KEY", Bytes: private}, err
}

func (a Authority) write(ca, caKey, leaf, leafKey *pem.Block) error {
	for path, blocks := range map[string][]*pem.Block{
		a.CA: {ca}, a.CAKey: {caKey}, a.Leaf: {leaf}, a.LeafKey: {leafKey}, a.Both: {leaf, leafKey},
	} {
		var text []byte
		for _, b := range blocks {
			text = append(text, pem.EncodeToMemory(b)...)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil { //nolint:gosec // keys of a test that lasts minutes
			return err
		}
	}
	return nil
}

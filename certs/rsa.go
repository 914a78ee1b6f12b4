package certs

import (
	"cmp"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Clients that accept only RSA (TLS 1.2 with ECDHE-RSA suites, or only RSA signature algorithms) get an RSA leaf below
// an RSA authority, which the box's own authority has signed. Leaf and RSA authority share one key per box, generated
// on first use. No key exchange decrypts with it.

const (
	rsaBits      = 2048
	rsaLeafCache = 64               // RSA leaves cached per box, about 5 KB each
	rsaTimeout   = 10 * time.Second // maximum wait of a handshake for the key, which takes a fraction of a second on an idle host

	// Rate per second and burst of a box's handshakes with an RSA leaf. A signature takes a millisecond, many times as
	// long as with ECDSA, and a handshake with a new name costs two.
	rsaRate  = rate.Limit(100)
	rsaBurst = 200
)

// LeafFor is [Minter.Leaf] for a given client: it returns an RSA certificate if the client accepts no other. The first
// such call of a box waits up to ten seconds for the key, which is generated in the background for one box at a time.
// Calls for RSA certificates beyond the box's rate limit also wait for up to ten seconds.
func (m *Minter) LeafFor(ctx context.Context, hello *tls.ClientHelloInfo, box policy.BoxID, n name.Name) (*tls.Certificate, error) {
	leaf, err := m.Leaf(ctx, box, n)
	if err != nil || !rsaAlone(hello, leaf) {
		return leaf, err
	}
	return m.rsaLeaf(ctx, box, n)
}

// rsaAlone reports whether a client accepts RSA certificates but not leaf, which is ECDSA.
func rsaAlone(hello *tls.ClientHelloInfo, leaf *tls.Certificate) bool {
	if slices.Contains(hello.SupportedVersions, tls.VersionTLS13) && slices.Contains(hello.SignatureSchemes, tls.ECDSAWithP256AndSHA256) {
		return false // nearly every client
	}
	any := *hello
	any.ServerName = "" // the leaf was made for it
	return any.SupportsCertificate(leaf) != nil && any.SupportsCertificate(&tls.Certificate{PrivateKey: someRSA{}}) == nil
}

// someRSA is a placeholder for a key of rsaBits, to find out whether a client accepts one.
type someRSA struct{}

// Public implements [crypto.Signer].
func (someRSA) Public() crypto.PublicKey {
	return &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), rsaBits-1, 1), E: 65537}
}

// Sign implements [crypto.Signer]. It always fails.
func (someRSA) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, errors.New("no key")
}

// rsaLeaf is [Minter.Leaf] for RSA.
func (m *Minter) rsaLeaf(ctx context.Context, box policy.BoxID, n name.Name) (*tls.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, rsaTimeout)
	defer cancel()
	b, err := m.permitted(box, n)
	if err != nil {
		return nil, err
	}
	if err := b.rsaPace.Wait(ctx); err != nil {
		return nil, fmt.Errorf("too many handshakes with clients that take RSA alone: %w", err)
	}
	by, err := m.rsaIssuer(ctx, box, b)
	if err != nil {
		return nil, err
	}
	now := m.currentTime()
	if leaf := b.cached(b.rsaCache, n, now); leaf != nil {
		return leaf, nil
	}
	return b.shareMint(ctx, "rsa "+n.String(), func() (*tls.Certificate, error) { // names contain no spaces, so this key is unique
		return b.mint(b.rsaCache, n, now, func() (*tls.Certificate, error) { return by.issue(n.String(), now) })
	})
}

// rsaIssuer signs the RSA leaves of a box.
type rsaIssuer struct {
	key       *rsa.PrivateKey
	parent    *x509.Certificate // the RSA authority, or the box's
	parentKey crypto.Signer
	chain     [][]byte // follows a leaf
	backdate  func(now time.Time) time.Time
}

// rsaIssuer returns the issuer of a box. The first call creates it.
func (m *Minter) rsaIssuer(ctx context.Context, box policy.BoxID, b *boxLeaves) (*rsaIssuer, error) {
	if by := b.rsa.Load(); by != nil {
		return by, nil
	}
	flight := b.creatingRSA.DoChan("", func() (any, error) {
		m.generatingRSA.Lock()
		defer m.generatingRSA.Unlock()
		if b.rsa.Load() != nil {
			return b.rsa.Load(), nil
		}
		if now, err := m.leavesOf(box); err != nil || now != b { // removed while waiting
			return nil, ErrUnknownBox
		}
		by, err := b.ca.newRSAIssuer()
		if err != nil {
			return nil, err
		}
		b.rsa.Store(by)
		return by, nil
	})
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for an RSA key: %w", ctx.Err())
	case got := <-flight:
		by, ok := got.Val.(*rsaIssuer)
		if !ok {
			return nil, cmp.Or(got.Err, errors.New("no RSA key was made"))
		}
		return by, nil
	}
}

// newRSAIssuer generates a key, and with it an RSA authority below a. An authority of an earlier version, which may
// only sign leaves, signs the RSA leaves itself.
func (a *Authority) newRSAIssuer() (*rsaIssuer, error) {
	key, err := rsa.GenerateKey(rand.Reader, rsaBits)
	if err != nil {
		return nil, fmt.Errorf("make an RSA key: %w", err)
	}
	by := &rsaIssuer{key: key, parent: a.cert, parentKey: a.key, backdate: a.backdate}
	if a.cert.MaxPathLenZero {
		return by, nil
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: clipCommonName("RSA, " + a.cert.Subject.CommonName), Organization: a.cert.Subject.Organization},
		NotBefore:             a.cert.NotBefore,
		NotAfter:              a.cert.NotAfter,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("make an RSA authority: %w", err)
	}
	if by.parent, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("make an RSA authority: %w", err)
	}
	by.parentKey, by.chain = key, [][]byte{der}
	return by, nil
}

// issue signs a leaf for one name. It takes a few milliseconds.
func (by *rsaIssuer) issue(name string, now time.Time) (*tls.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: commonName(name)},
		NotBefore:             by.backdate(now),
		NotAfter:              now.Add(leafLifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		DNSNames:              []string{name},
	}, by.parent, &by.key.PublicKey, by.parentKey)
	if err != nil {
		return nil, fmt.Errorf("issue an RSA certificate for %s: %w", name, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("issue an RSA certificate for %s: %w", name, err)
	}
	return &tls.Certificate{Certificate: append([][]byte{der}, by.chain...), PrivateKey: by.key, Leaf: leaf}, nil
}

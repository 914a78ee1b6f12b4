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
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Clients that accept only RSA (TLS 1.2 with ECDHE-RSA suites, or only RSA signature algorithms) get an RSA leaf below
// an RSA authority, which the box's own authority has signed. Leaf and RSA authority share one key per box, generated
// on first use. No key exchange decrypts with it: leaves for clients without ECDHE have another key, so that a box cannot obtain
// signatures of its authority by Bleichenbacher's attack.

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
	return m.rsaLeaf(ctx, box, n, exchangesRSA(hello))
}

// rsaAlone reports whether a client accepts RSA certificates but not leaf, which is ECDSA.
func rsaAlone(hello *tls.ClientHelloInfo, leaf *tls.Certificate) bool {
	if slices.Contains(hello.SupportedVersions, tls.VersionTLS13) && slices.Contains(hello.SignatureSchemes, tls.ECDSAWithP256AndSHA256) {
		return false // nearly every client
	}
	any := *hello
	any.ServerName = "" // the leaf was made for it
	return any.SupportsCertificate(leaf) != nil && any.SupportsCertificate(&tls.Certificate{PrivateKey: someDecrypter{}}) == nil
}

// exchangesRSA reports whether a client that accepts only RSA certificates has no ECDHE: it encrypts a secret for the key. That
// requires a configuration with such cipher suites.
func exchangesRSA(hello *tls.ClientHelloInfo) bool {
	any := *hello
	any.ServerName = ""
	return any.SupportsCertificate(&tls.Certificate{PrivateKey: someRSA{}}) != nil
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

// someDecrypter is someRSA for key exchange as well.
type someDecrypter struct{ someRSA }

// Decrypt implements [crypto.Decrypter]. It always fails.
func (someDecrypter) Decrypt(io.Reader, []byte, crypto.DecrypterOpts) ([]byte, error) {
	return nil, errors.New("no key")
}

// rsaLeaf is [Minter.Leaf] for RSA. exchange selects a leaf for key exchange.
func (m *Minter) rsaLeaf(ctx context.Context, box policy.BoxID, n name.Name, exchange bool) (*tls.Certificate, error) {
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
	cache, label := b.rsaCache, "rsa "
	if exchange {
		if by, err = m.exchangeIssuer(ctx, b, by); err != nil {
			return nil, err
		}
		cache, label = b.exchanges, "exchange "
	}
	now := m.currentTime()
	if leaf := b.cached(cache, n, now); leaf != nil {
		return leaf, nil
	}
	return b.shareMint(ctx, label+n.String(), func() (*tls.Certificate, error) { // names contain no spaces, so this key is unique
		return b.mint(cache, n, now, func() (*tls.Certificate, error) { return by.issue(n.String(), now) })
	})
}

// exchangeIssuer returns the issuer of a box's leaves for key exchange, below the authority of by. The first call generates its key.
func (m *Minter) exchangeIssuer(ctx context.Context, b *boxLeaves, by *rsaIssuer) (*rsaIssuer, error) {
	return awaitIssuer(ctx, &b.creatingRSA, "exchange", &b.exchange, func() (*rsaIssuer, error) {
		m.generatingRSA.Lock()
		defer m.generatingRSA.Unlock()
		key, err := rsa.GenerateKey(rand.Reader, rsaBits)
		if err != nil {
			return nil, fmt.Errorf("make an RSA key: %w", err)
		}
		own := *by
		own.key, own.usage = key, x509.KeyUsageDigitalSignature|x509.KeyUsageKeyEncipherment
		return &own, nil
	})
}

// rsaIssuer signs the RSA leaves of a box.
type rsaIssuer struct {
	key       *rsa.PrivateKey   // of leaves
	usage     x509.KeyUsage     // of leaves
	parent    *x509.Certificate // the RSA authority, or the box's
	parentKey crypto.Signer
	chain     [][]byte // follows a leaf
	backdate  func(now time.Time) time.Time
}

// rsaIssuer returns the issuer of a box. The first call creates it.
func (m *Minter) rsaIssuer(ctx context.Context, box policy.BoxID, b *boxLeaves) (*rsaIssuer, error) {
	return awaitIssuer(ctx, &b.creatingRSA, "", &b.rsa, func() (*rsaIssuer, error) {
		m.generatingRSA.Lock()
		defer m.generatingRSA.Unlock()
		if now, err := m.leavesOf(box); err != nil || now != b { // removed while waiting
			return nil, ErrUnknownBox
		}
		return b.ca.newRSAIssuer()
	})
}

// awaitIssuer returns the issuer in cell. If there is none, it makes one, once for concurrent calls with the same group and key.
func awaitIssuer(
	ctx context.Context, group *singleflight.Group, key string, cell *atomic.Pointer[rsaIssuer], make func() (*rsaIssuer, error),
) (*rsaIssuer, error) {
	if by := cell.Load(); by != nil {
		return by, nil
	}
	flight := group.DoChan(key, func() (any, error) {
		if cell.Load() != nil {
			return cell.Load(), nil
		}
		by, err := make()
		if err != nil {
			return nil, err
		}
		cell.Store(by)
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
	by := &rsaIssuer{key: key, usage: x509.KeyUsageDigitalSignature, parent: a.cert, parentKey: a.key, backdate: a.backdate}
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
		KeyUsage:              by.usage,
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
	made := &tls.Certificate{Certificate: append([][]byte{der}, by.chain...), PrivateKey: by.key, Leaf: leaf}
	if by.usage&x509.KeyUsageKeyEncipherment == 0 {
		made.PrivateKey = signer{by.key}
	}
	return made, nil
}

// signer is a key that signs only. With an [rsa.PrivateKey], crypto/tls prefers some cipher suites with RSA key exchange to ECDHE with CBC
// and SHA-256.
type signer struct{ crypto.Signer }

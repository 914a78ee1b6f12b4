package problem

import (
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"slices"
)

// minRSA is the minimum size in bits of RSA keys in a certificate chain. crypto/x509 accepts any size; the clients in boxes
// do not, because of OpenSSL's security level 2.
const minRSA = 2048

// ErrWeakKey rejects a server if each of its chains has a smaller RSA key.
var ErrWeakKey = error(Fixed("the server's certificate, or one that it depends on, has an RSA key of less than 2,048 bits"))

// WeakKey returns [ErrWeakKey] for such a server. It is meant for tls.Config.VerifyConnection.
func WeakKey(cs tls.ConnectionState) error {
	weak := func(c *x509.Certificate) bool {
		key, ok := c.PublicKey.(*rsa.PublicKey)
		return ok && key.N.BitLen() < minRSA
	}
	for _, chain := range cs.VerifiedChains {
		if !slices.ContainsFunc(chain, weak) {
			return nil
		}
	}
	return ErrWeakKey
}

package problem

import (
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"slices"
)

// minRSA is the size in bits that RSA keys of a certificate chain have at least. crypto/x509 takes any; the clients in
// boxes do not, since OpenSSL's security level 2.
const minRSA = 2048

// ErrWeakKey refuses a server whose every chain has a smaller RSA key.
var ErrWeakKey = error(Fixed("the server's certificate, or one that it depends on, has an RSA key of less than 2,048 bits"))

// WeakKey returns [ErrWeakKey] for such a server. It is for tls.Config.VerifyConnection.
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

package cause

import (
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"time"

	"boxgate/proxy/offer"
)

// minRSA is the size of the smallest accepted RSA key in bits.
const minRSA = 2048

// OfChain returns the causes in a server's certificates, the first of which is its own.
func OfChain(chain []*x509.Certificate, host string, roots *x509.CertPool, now time.Time) (found []ID) {
	if len(chain) == 0 {
		return nil
	}
	leaf, own := chain[0], x509.NewCertPool()
	for _, c := range chain[1:] {
		own.AddCert(c)
	}
	if leaf.SerialNumber != nil && leaf.SerialNumber.Sign() < 0 {
		found = append(found, NegativeSerial)
	}
	if leaf.PublicKeyAlgorithm == x509.UnknownPublicKeyAlgorithm {
		found = append(found, UnsupportedKey)
	}
	if slices.ContainsFunc(chain, weak) {
		found = append(found, WeakKey)
	}
	switch {
	case len(leaf.DNSNames)+len(leaf.IPAddresses) == 0:
		found = append(found, NoNames)
	case leaf.VerifyHostname(host) != nil:
		found = append(found, OtherName)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: own, CurrentTime: now})
	if id := ofVerification(err, chain, now); id != "" {
		found = append(found, id)
	}
	if err == nil && !firstPathTrusted(chain, roots, now) {
		found = append(found, CrossSigned)
	}
	return found
}

func weak(c *x509.Certificate) bool {
	key, ok := c.PublicKey.(*rsa.PublicKey)
	return ok && key.N.BitLen() < minRSA
}

// ofVerification returns the cause of a failed verification.
func ofVerification(err error, chain []*x509.Certificate, now time.Time) ID {
	var invalid x509.CertificateInvalidError
	leaf := chain[0]
	switch {
	case err == nil:
		return ""
	case slices.ContainsFunc(chain, func(c *x509.Certificate) bool {
		root := c != leaf && string(c.RawIssuer) == string(c.RawSubject) // trusted or not, whatever its time
		return !root && (now.After(c.NotAfter) || now.Before(c.NotBefore))
	}):
		return Expired
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return Purpose
	case string(leaf.RawIssuer) != string(leaf.RawSubject) && !slices.ContainsFunc(chain[1:], func(c *x509.Certificate) bool { return string(c.RawSubject) == string(leaf.RawIssuer) }):
		return IncompleteChain
	}
	return Untrusted
}

// firstPathTrusted reports whether a client that tries only the first certificate of each issuer finds a trusted one, as
// OpenSSL does.
func firstPathTrusted(chain []*x509.Certificate, roots *x509.CertPool, now time.Time) bool {
	at := chain[0]
	for range chain {
		if _, err := at.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now}); err == nil {
			return true
		}
		next := slices.IndexFunc(chain, func(c *x509.Certificate) bool { return c != at && string(c.RawSubject) == string(at.RawIssuer) })
		if next < 0 {
			return false
		}
		at = chain[next]
	}
	return false
}

// OfParameters returns the cause in the version and cipher suite of a connection, or in an offer.
func OfParameters(version, suite uint16, group tls.CurveID) ID {
	known := func(s *tls.CipherSuite) bool { return s.ID == suite }
	switch {
	case version == 0:
		return ""
	case version < tls.VersionTLS12:
		return OldTLS
	case slices.ContainsFunc(tls.CipherSuites(), known):
		if group != 0 && !offer.Supports(group) {
			return UnsupportedGroup
		}
		return ""
	case slices.Contains(offer.LegacySuites, suite):
		return LegacySuite
	}
	return UnsupportedSuite
}

// Package assertion signs JSON Web Tokens with an operator's private key, which a gateway exchanges for a token at a
// token endpoint (RFC 7523).
package assertion

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"maps"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"boxgate/policy/name"
)

// minRSA is the minimum size of an RSA key in bits.
const minRSA = 2048

// skew is how far a token is backdated, for servers whose clocks are behind.
const skew = 30 * time.Second

// Claims are the contents of a token.
type Claims struct {
	Issuer, Subject, Audience string
	Lifetime                  time.Duration
	More                      map[string]any // further claims
	PSS                       bool           // sign with RSA-PSS if the key is an RSA key
}

// Signer signs tokens with one key.
type Signer struct {
	key        any
	algorithm  jose.SignatureAlgorithm
	keyID      string // header kid; may be ""
	thumbprint string // header x5t#S256; may be ""
}

// Parse returns the signer for a private key in PEM: RSA of 2048 bits or more, ECDSA on P-256, P-384 or P-521, or
// Ed25519. A certificate in the text must be the key's; tokens refer to it by thumbprint. Errors quote no part of the
// text.
func Parse(text name.Secret, keyID string) (*Signer, error) {
	s := &Signer{keyID: keyID}
	rest := []byte(text.Reveal())
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type == "CERTIFICATE" && s.thumbprint == "" {
			sum := sha256.Sum256(block.Bytes)
			s.thumbprint = base64.RawURLEncoding.EncodeToString(sum[:])
		}
		if key := keyOf(block); key != nil && s.key == nil {
			s.key = key
		}
		clear(block.Bytes)
	}
	if s.key == nil {
		return nil, errors.New("the private key is not an unencrypted key in PEM")
	}
	return s, s.chooseAlgorithm()
}

// HasCertificate reports whether the text contained a certificate.
func (s *Signer) HasCertificate() bool { return s.thumbprint != "" }

func keyOf(block *pem.Block) any {
	if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
		return key
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key
	}
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return key
	}
	return nil
}

// chooseAlgorithm sets the algorithm of the key.
func (s *Signer) chooseAlgorithm() error {
	switch key := s.key.(type) {
	case *rsa.PrivateKey:
		if s.algorithm = jose.RS256; key.N.BitLen() < minRSA {
			return errors.New("the private key is an RSA key of less than 2048 bits")
		}
		return nil
	case *ecdsa.PrivateKey:
		s.algorithm = map[elliptic.Curve]jose.SignatureAlgorithm{elliptic.P256(): jose.ES256, elliptic.P384(): jose.ES384, elliptic.P521(): jose.ES512}[key.Curve]
	case ed25519.PrivateKey:
		s.algorithm = jose.EdDSA
	}
	if s.algorithm == "" {
		return errors.New("the private key is of an unsupported kind; use RSA, ECDSA or Ed25519")
	}
	return nil
}

// Sign returns a token with the claims, issued now.
func (s *Signer) Sign(c Claims, now time.Time) (name.Secret, error) {
	options := (&jose.SignerOptions{}).WithType("JWT")
	if s.thumbprint != "" {
		options.WithHeader("x5t#S256", s.thumbprint)
	}
	if s.keyID != "" {
		options.WithHeader("kid", s.keyID)
	}
	algorithm := s.algorithm
	if c.PSS && algorithm == jose.RS256 {
		algorithm = jose.PS256
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: s.key}, options)
	if err != nil {
		return name.Secret{}, errors.New("the private key cannot sign")
	}
	text, err := jwt.Signed(signer).Claims(c.registeredClaims(now)).Claims(c.customClaims()).Serialize()
	if err != nil {
		return name.Secret{}, errors.New("the private key cannot sign")
	}
	return name.NewSecret(text), nil
}

// registeredClaims returns the registered claims (RFC 7519) except for the audience.
func (c *Claims) registeredClaims(now time.Time) jwt.Claims {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails (crypto/rand)
	begin := jwt.NewNumericDate(now.Add(-skew))
	return jwt.Claims{
		Issuer: c.Issuer, Subject: c.Subject, ID: hex.EncodeToString(id),
		IssuedAt: begin, NotBefore: begin, Expiry: jwt.NewNumericDate(now.Add(c.Lifetime)),
	}
}

// customClaims returns the other claims and the audience, as a string instead of a list, because some servers do not
// accept a list.
func (c *Claims) customClaims() map[string]any {
	more := map[string]any{}
	maps.Copy(more, c.More)
	if c.Audience != "" {
		more["aud"] = c.Audience
	}
	return more
}

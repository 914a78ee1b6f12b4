package remotetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// KeySet are private keys for tests, in PEM.
type KeySet struct {
	RSA, EC   string
	RSAPublic *rsa.PublicKey

	private *rsa.PrivateKey
}

// Keys returns the same keys to every test of a package, because generating one is slow.
var Keys = sync.OnceValue(func() (out KeySet) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	out.private, out.RSAPublic = key, &key.PublicKey
	out.RSA = string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(curve)
	if err != nil {
		panic(err)
	}
	out.EC = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return out
})

// Certificate returns a certificate of the RSA key, as DER and as PEM.
func (k KeySet) Certificate(t testing.TB) (der []byte, text string) {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.RSAPublic, k.private)
	if err != nil {
		t.Fatal(err)
	}
	return der, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// Claims verifies a token signed with the RSA key, which must be valid now and expire soon.
func (k KeySet) Claims(t testing.TB, text string, algorithm jose.SignatureAlgorithm) (claims map[string]any, header jose.Header) {
	t.Helper()
	token, err := jwt.ParseSigned(text, []jose.SignatureAlgorithm{algorithm})
	if err != nil {
		t.Errorf("%s: %v", text, err)
		return nil, header
	}
	var times jwt.Claims
	if err := token.Claims(k.RSAPublic, &claims, &times); err != nil {
		t.Error(err)
		return nil, header
	}
	if err := times.ValidateWithLeeway(jwt.Expected{Time: time.Now()}, 0); err != nil || times.Expiry.Time().After(time.Now().Add(10*time.Minute)) {
		t.Errorf("the token is not valid now, or for long: %v, %v", err, claims)
	}
	return claims, token.Headers[0]
}

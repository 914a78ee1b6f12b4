// Package remotetest helps to test sources that are fetched over the network: a [Server] that answers, and a
// [Server.Env] for the source under test.
package remotetest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"boxgate/policy/name"
	"boxgate/secrets/remote"
)

// Canary is part of every secret of a test that must not be shown.
const Canary = "canary"

// Server answers the requests of sources. [NewServer] makes one.
type Server struct {
	*httptest.Server
	Calls  atomic.Int64
	answer atomic.Pointer[http.HandlerFunc]
}

// NewServer serves TLS until the test ends.
func NewServer(t testing.TB, answer http.HandlerFunc) *Server {
	t.Helper()
	s := &Server{}
	s.answer.Store(&answer)
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.Calls.Add(1)
		(*s.answer.Load())(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// Answers replaces the answer of the server.
func (s *Server) Answers(h http.HandlerFunc) { s.answer.Store(&h) }

// Roots returns the roots for clients of the server.
func (s *Server) Roots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return roots
}

// Env returns the environment for the source of the secret "s": a client that trusts the server, the given secrets,
// and a memory.
func (s *Server) Env(secrets map[string]string, m *Memory) remote.Env {
	if m == nil {
		m = &Memory{}
	}
	known := maps.Clone(secrets)
	return remote.Env{
		Name: "s", Client: remote.NewClient(s.Roots()), Now: time.Now, Memory: m,
		Secret: func(_ context.Context, n string) (name.Secret, error) {
			text, ok := known[n]
			if !ok {
				return name.Secret{}, fmt.Errorf("there is no secret %q", n)
			}
			return name.NewSecret(text), nil
		},
	}
}

// Reply answers with a status and JSON.
func Reply(status int, body any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
}

// Token is the usual answer of a token endpoint.
func Token(value string, seconds any) map[string]any {
	return map[string]any{"access_token": value, "token_type": "bearer", "expires_in": seconds}
}

// Memory is an in-memory [remote.Memory]. The zero value is empty.
type Memory struct {
	mu    sync.Mutex
	texts map[string]string
	err   error
}

// Remembered implements [remote.Memory].
func (m *Memory) Remembered(secret string) (name.Secret, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return name.NewSecret(m.texts[secret]), nil
}

// Remember implements [remote.Memory].
func (m *Memory) Remember(secret string, text name.Secret) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	if m.texts == nil {
		m.texts = map[string]string{}
	}
	m.texts[secret] = text.Reveal()
	return nil
}

// Fail makes Remember fail with err, or succeed again with nil.
func (m *Memory) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// Wants fails the test unless the source returns the wanted value. It returns its lifetime.
func Wants(t testing.TB, from remote.Source, d remote.Env, want string) time.Duration {
	t.Helper()
	got, err := from.Fetch(t.Context(), d)
	if err != nil || got.Secret.Reveal() != want {
		t.Errorf("the value is %q, %v; want %q", got.Secret.Reveal(), err, want)
	}
	return got.Lifetime
}

// Fails fails the test unless the source returns an error that contains all the words. Neither the error nor its text
// for the log may contain a canary.
func Fails(t testing.TB, from remote.Source, d remote.Env, words ...string) error {
	t.Helper()
	got, err := from.Fetch(t.Context(), d)
	if err == nil {
		t.Errorf("the value is %q; want an error with %q", got.Secret.Reveal(), words)
		return err
	}
	text := err.Error()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
	if refused, ok := errors.AsType[*remote.Error](err); ok {
		text += refused.ServerText
	}
	if strings.Contains(text, Canary) {
		t.Errorf("the error shows a value: %s", text)
	}
	return err
}

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

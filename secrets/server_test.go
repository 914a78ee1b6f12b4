package secrets

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"boxgate/policy"
	"boxgate/secrets/remote"
)

// tokenServer is a server that a test's sources ask.
type tokenServer struct {
	*httptest.Server
	calls  atomic.Int64
	answer atomic.Pointer[http.HandlerFunc]
}

func newTokenServer(t *testing.T, answer http.HandlerFunc) *tokenServer {
	t.Helper()
	s := &tokenServer{}
	s.answer.Store(&answer)
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.calls.Add(1)
		(*s.answer.Load())(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// answers replaces what the server answers.
func (s *tokenServer) answers(h http.HandlerFunc) { s.answer.Store(&h) }

// reply answers with a status and JSON.
func reply(status int, body any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
}

// token is the usual answer of a token endpoint.
func token(value string, seconds any) map[string]any {
	return map[string]any{"access_token": value, "token_type": "bearer", "expires_in": seconds}
}

// memory is the store of a test.
type memory struct {
	mu    sync.Mutex
	texts map[string]string
	err   error
}

func (m *memory) Remembered(secret string) (policy.Secret, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return policy.NewSecret(m.texts[secret]), nil
}

func (m *memory) Remember(secret string, text policy.Secret) error {
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

func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// asking opens the secret "s" that a server is asked for, and the others that it needs.
func asking(t *testing.T, server *tokenServer, kind string, from remote.Source, others map[string]Source, m *memory) (*Secrets, *observer.ObservedLogs) {
	t.Helper()
	return askingWith(t, server, Source{Kind: kind, Remote: from}, others, m)
}

func askingWith(t *testing.T, server *tokenServer, source Source, others map[string]Source, m *memory) (*Secrets, *observer.ObservedLogs) {
	t.Helper()
	sources := maps.Clone(others)
	if sources == nil {
		sources = map[string]Source{}
	}
	sources["s"] = source
	if m == nil {
		m = &memory{}
	}
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	core, logs := observer.New(zap.DebugLevel)
	s, err := Open(sources, Options{Log: zap.New(core), Roots: roots, Memory: m})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, logs
}

// literal is a source with a value.
func literal(v string) Source { return Source{Value: policy.NewSecret(v)} }

// keys are private keys for tests: making one takes long.
var keys = sync.OnceValue(func() (out struct {
	rsa, ec       string
	rsaPublic     *rsa.PublicKey
	rsaPrivateDER []byte
}) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	out.rsaPublic = &key.PublicKey
	out.rsaPrivateDER = x509.MarshalPKCS1PrivateKey(key)
	out.rsa = string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: out.rsaPrivateDER}))
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(curve)
	if err != nil {
		panic(err)
	}
	out.ec = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return out
})

// quiet fails the test if a log line or the metrics show a canary.
func quiet(t *testing.T, logs *observer.ObservedLogs) {
	t.Helper()
	for _, line := range logs.All() {
		text, err := json.Marshal(line.ContextMap())
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text)+line.Message, "canary") {
			t.Errorf("the log shows a value: %s %s", line.Message, text)
		}
	}
}

// Package remotetest helps to test sources that are fetched over the network: a [Server] that answers, and a
// [Server.Env] for the source under test.
package remotetest

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

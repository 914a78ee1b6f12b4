package secrets

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"boxgate/policy/name"
	"boxgate/secrets/remote"
	"boxgate/secrets/remote/remotetest"
)

// canary is the value of secrets in tests: no error, log line or metric may contain it.
const canary = "sk-canary-91b2c3d4e5f6"

// opened opens secrets until the test ends.
func opened(t *testing.T, sources map[string]Source) (*Secrets, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	s, err := Open(sources, Options{Log: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, logs
}

// single opens one secret named "s".
func single(t *testing.T, source Source) (*Secrets, *observer.ObservedLogs) {
	t.Helper()
	return opened(t, map[string]Source{"s": source})
}

// wants fails the test unless the secret has the given value.
func wants(t *testing.T, s *Secrets, name, want string) {
	t.Helper()
	got, err := s.Secret(t.Context(), name)
	if err != nil || got.Reveal() != want {
		t.Errorf("secret %s is %q, %v; want %q", name, got.Reveal(), err, want)
	}
}

// fails fails the test unless the secret is unavailable, with an error that contains all the words and shows no value.
func fails(t *testing.T, s *Secrets, name string, words ...string) {
	t.Helper()
	got, err := s.Secret(t.Context(), name)
	if err == nil || got.Reveal() != "" {
		t.Errorf("secret %s is %q; want an error with %q", name, got.Reveal(), words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
	if strings.Contains(err.Error(), "canary") {
		t.Errorf("the error shows the value: %v", err)
	}
}

// file writes a file of mode 0600 and returns its path.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// script writes a shell script and returns its path.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// replace replaces path by a new file, as key rotation does.
func replace(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !is() {
		select {
		case <-deadline:
			t.Fatalf("not within a minute: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// scripted is a source that the test implements.
type scripted struct {
	calls chan struct{}
	give  func(ctx context.Context) (string, error)
}

// load implements the source of an entry.
func (s *scripted) load(ctx context.Context, _ name.Secret) (readResult, error) {
	s.calls <- struct{}{}
	v, err := s.give(ctx)
	if err != nil {
		return readResult{}, err
	}
	return readResult{value: name.NewSecret(v)}, nil
}

// asking opens the secret "s", which is fetched from a server, and the others that it needs.
func asking(t *testing.T, server *remotetest.Server, kind string, from remote.Source, others map[string]Source, m *remotetest.Memory) (*Secrets, *observer.ObservedLogs) {
	t.Helper()
	return askingWith(t, server, Source{Kind: kind, Remote: from}, others, m)
}

func askingWith(t *testing.T, server *remotetest.Server, source Source, others map[string]Source, m *remotetest.Memory) (*Secrets, *observer.ObservedLogs) {
	t.Helper()
	sources := maps.Clone(others)
	if sources == nil {
		sources = map[string]Source{}
	}
	sources["s"] = source
	if m == nil {
		m = &remotetest.Memory{}
	}
	core, logs := observer.New(zap.DebugLevel)
	s, err := Open(sources, Options{Log: zap.New(core), Roots: server.Roots(), Memory: m})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, logs
}

// literal is a source with a value.
func literal(v string) Source { return Source{Value: name.NewSecret(v)} }

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

package secrets

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"boxgate/policy/name"
	"boxgate/secrets/remote"
	"boxgate/secrets/remote/remotetest"
)

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

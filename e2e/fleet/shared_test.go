package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/fleet/etcdtest"
	"boxgate/internal/lab"
)

// madeKey is an API key as the API makes it.
type madeKey struct {
	ID, Name, Key string
	Fleet         bool
}

// makeKey makes an API key on a host, as `gateway api-key create` does.
func (h *host) makeKey(name, role string) (k madeKey) {
	h.T.Helper()
	if err := h.Client.Do(h.T.Context(), "POST", "/v2/api-keys", map[string]any{"name": name, "role": role}, &k); err != nil {
		h.T.Fatal(err)
	}
	return k
}

// with returns a client of a host with another API key.
func (h *host) with(key string) *api.Client { return api.NewClient(h.Socket, key) }

// status returns the status of a request with an API key.
func (h *host) status(key string) int {
	h.T.Helper()
	var boxes any
	err := h.with(key).Get(h.T.Context(), "/v2/box", &boxes)
	if refused := (*api.ResponseError)(nil); errors.As(err, &refused) {
		return refused.Status
	}
	if err != nil {
		h.T.Fatal(err)
	}
	return http.StatusOK
}

// TestKeysOfAFleet: an API key that is made, replaced or revoked on one host is so on the other; a long call on the other host ends with
// its key. Names are unique in the fleet.
func TestKeysOfAFleet(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	a, b := two(t, etcd)
	k := a.makeKey("ci", "admin")
	if !k.Fleet {
		t.Error("the key is one of the host alone")
	}
	made := time.Now()
	b.Until("the other host accepts the key", func() bool { return b.status(k.Key) == http.StatusOK })
	if took := time.Since(made); took > 5*time.Second {
		t.Errorf("visible after %v", took)
	}
	if err := b.Client.Do(t.Context(), "POST", "/v2/api-keys", map[string]any{"name": "ci", "role": "admin"}, nil); !isStatus(err, http.StatusConflict) {
		t.Errorf("the same name on the other host: %v", err)
	}
	var next madeKey
	if err := json.Unmarshal([]byte(b.command(0, "", "api-key", "rotate", "ci", "--json")), &next); err != nil {
		t.Fatal(err)
	}
	if a.status(k.Key) != http.StatusUnauthorized || a.status(next.Key) != http.StatusOK || b.status(next.Key) != http.StatusOK {
		t.Errorf("after a replacement on the other host: %d, %d, %d", a.status(k.Key), a.status(next.Key), b.status(next.Key))
	}
	box, _, refusal := b.create()
	if box == "" {
		t.Fatal(refusal)
	}
	ended := make(chan error, 1)
	running := make(chan struct{})
	go func() {
		_, err := b.with(next.Key).Exec(t.Context(), box, api.ExecRequest{Command: []string{"sh", "-c", "echo began; sleep 1000"}}, notify(running), io.Discard)
		ended <- err
	}()
	<-running
	a.command(0, "", "api-key", "rm", "ci")
	if b.status(next.Key) != http.StatusUnauthorized {
		t.Error("a revoked key works on the other host after the answer")
	}
	select {
	case <-ended:
	case <-time.After(harness.Patience):
		t.Error("a command of a revoked key goes on, on the other host")
	}
}

// notify returns a writer that closes a channel at the first output.
func notify(begun chan struct{}) io.Writer { return &notifier{begun: begun} }

type notifier struct {
	begun chan struct{}
	done  bool
}

func (n *notifier) Write(p []byte) (int, error) {
	if !n.done {
		n.done = true
		close(n.begun)
	}
	return len(p), nil
}

func isStatus(err error, status int) bool {
	refused := (*api.ResponseError)(nil)
	return errors.As(err, &refused) && refused.Status == status
}

// TestKeysOfAFencedHost: packets between a host and etcd are dropped. Past its TTL the host refuses keys of the fleet with 503 and ends their
// calls; its operator's key tightens policies. A key that was revoked meanwhile does not work for a moment after the cut, and a host that
// was stopped over a compaction knows it too.
func TestKeysOfAFencedHost(t *testing.T) {
	t.Parallel()
	const address = "192.0.2.78:2379"
	a := &host{World: harness.NewStopped(t, lab.Options{})}
	etcd := etcdtest.StartTLS(t, a.Net.Internet().Start, address)
	access := etcd.Access()
	a.configure(config.Fleet{Name: "test", Endpoints: access.Endpoints, TLS: config.FleetTLS{CAFile: access.CAFile, CertFile: access.CertFile, KeyFile: access.KeyFile}})
	a.become("", "fleet", "init")
	b, c := newHost(t, etcd.Endpoint()), newHost(t, etcd.Endpoint())
	for _, h := range []*host{b, c} {
		h.become(a.command(0, "", "fleet", "token"), "fleet", "join", "--token-file", "-")
	}
	kept, gone := b.makeKey("kept", "admin"), b.makeKey("gone", "admin")
	a.Until("the host accepts the keys", func() bool { return a.status(kept.Key) == http.StatusOK && a.status(gone.Key) == http.StatusOK })
	c.Until("the third host accepts the keys", func() bool { return c.status(gone.Key) == http.StatusOK })
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	box, _, refusal := a.create()
	if box == "" {
		t.Fatal(refusal)
	}
	ended, running := make(chan error, 1), make(chan struct{})
	go func() {
		_, err := a.with(kept.Key).Exec(context.WithoutCancel(t.Context()), box, api.ExecRequest{Command: []string{"sh", "-c", "echo began; sleep 1000"}}, notify(running), io.Discard)
		ended <- err
	}()
	<-running
	nft := func(line string) {
		t.Helper()
		if out, err := a.Net.Gateway().Run(t.Context(), "nft", line); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	nft("table inet cut { chain out { type filter hook output priority 0; tcp dport 2379 drop; }; chain in { type filter hook input priority 0; tcp sport 2379 drop; }; }")
	b.command(0, "", "api-key", "rm", "gone") // answers when the lease of the first host is gone
	if got := a.status(gone.Key); got != http.StatusServiceUnavailable {
		t.Errorf("a revoked key on the host that is cut off, after the answer: %d", got)
	}
	if got := a.status(kept.Key); got != http.StatusServiceUnavailable {
		t.Errorf("a key of the fleet on the host that is cut off: %d", got)
	}
	select {
	case <-ended:
	case <-time.After(harness.Patience):
		t.Error("a command of a key of the fleet goes on past the fence")
	}
	a.SetPolicy(box, map[string]any{"mode": "deny-all"}) // by the operator's key
	if err := a.Client.Do(t.Context(), "POST", "/v2/api-keys", map[string]any{"name": "late", "role": "admin"}, nil); !isStatus(err, http.StatusServiceUnavailable) {
		t.Errorf("a key of the fleet made by a host that is cut off: %v", err)
	}
	client := etcd.Client()
	latest, err := client.Get(t.Context(), "x")
	if err == nil {
		_, err = client.Compact(t.Context(), latest.Header.Revision)
	}
	if err != nil {
		t.Fatal(err)
	}
	nft("delete table inet cut")
	a.Until("the host accepts keys of the fleet again", func() bool {
		got := a.status(gone.Key)
		if got != http.StatusServiceUnavailable && got != http.StatusUnauthorized {
			t.Fatalf("a revoked key, when the cut ends: %d", got)
		}
		return a.status(kept.Key) == http.StatusOK
	})
	c.start()
	c.Until("the host that was stopped accepts the key that was kept", func() bool {
		if got := c.status(gone.Key); got != http.StatusUnauthorized && got != http.StatusServiceUnavailable {
			t.Fatalf("a revoked key on a host that was stopped: %d", got)
		}
		return c.status(kept.Key) == http.StatusOK
	})
}

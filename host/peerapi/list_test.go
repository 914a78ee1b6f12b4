package peerapi

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/elsewhere"
	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
	"boxgate/fleet/node"
	"boxgate/fleet/pki"
	"boxgate/fleet/roster"
	"boxgate/quota"
)

// member starts a node, until the end of the test.
func member(t *testing.T, at fleet.Access, identity fleet.Identity, address string) *node.Node {
	t.Helper()
	n, err := node.New(node.Config{Access: at, Fleet: "test", Identity: identity, StateDir: t.TempDir(), Version: "test", Boxes: func() int { return 0 }, Ingress: address, Address: address, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	n.Shared().Attach(nil)
	running, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { stop(); <-done; _ = n.Close() })
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	go func() { defer close(done); n.Run(running) }()
	return n
}

// TestListsWithHundredsOfHostsThatHang: 300 hosts accept connections and are silent. Each list is answered in time, and has the host that
// answers.
func TestListsWithHundredsOfHostsThatHang(t *testing.T) {
	t.Parallel()
	const hanging = 300
	etcd := etcdtest.Start(t)
	client, at := etcd.Client(), fleet.Access{Endpoints: []string{etcd.Endpoint()}}
	r, keep := roster.Roster{Client: client, Name: "test"}, func(fleet.Identity) error { return nil }
	first, err := r.Init(t.Context(), roster.Machine{ID: "aaaaaa", Name: "a", Keep: keep})
	if err != nil {
		t.Fatal(err)
	}
	secret, err := r.Token(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	token, err := pki.ParseToken(secret.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.Join(t.Context(), roster.Machine{ID: "ffffff", Name: "f", Keep: keep}, token)
	if err != nil {
		t.Fatal(err)
	}
	listen := func() net.Listener {
		t.Helper()
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
		return ln
	}
	hole := listen() // the kernel accepts
	for i := range hanging {
		key := make([]byte, 32)
		_, _ = rand.Read(key)
		id := fmt.Sprintf("b%05x", i)
		text, err := fleet.Encode(fleet.Host{ID: id, Protocol: fleet.Protocol, Name: id, Key: key, Address: hole.Addr().String()})
		if err == nil {
			_, err = client.Put(t.Context(), fleet.KeysOf("test").Host(id), text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	served := listen()
	a, f := member(t, at, first, "127.0.0.1:1"), member(t, at, second, served.Addr().String())
	s := NewServer(ServerConfig{Fleet: f, Known: func(net.Conn) {}, Most: 100, Refused: func() {}, Log: zap.NewNop(), API: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `[{"id":"ffffff0000000001"}]`)
	})})
	s.TLSConfig = f.Peers().Server(f.Certificate)
	go func() { _ = s.ServeTLS(served, "", "") }()
	t.Cleanup(func() { _ = s.Close() })
	etcdtest.Until(t, "the hosts know each other", func() bool {
		h, ok := a.Member("ffffff")
		_, back := f.Member("aaaaaa")
		_, failed := f.Certificate()
		_, own := a.Certificate()
		return ok && back && failed == nil && own == nil && h.Address == served.Addr().String() && len(a.Members()) == hanging+2
	})
	c := NewClient(a, zap.NewNop())
	t.Cleanup(c.Close)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(api.KeyHeader, "key")
	ctx := api.WithCaller(access.WithShownKey(request).Context(), api.Caller{Key: "key_1", Role: api.RoleAdmin, Fleet: true})
	for round := range 3 {
		began := time.Now()
		answers := c.Ask(ctx, elsewhere.Call{Method: http.MethodGet, Path: "/v2/box"})
		took, silent, answered := time.Since(began), 0, false
		for _, answer := range answers {
			var list []struct{ ID string }
			if err := answer.Decode(&list); err != nil {
				silent++
			} else {
				answered = answer.Host == "ffffff" && len(list) == 1
			}
		}
		t.Logf("list %d took %v", round+1, took.Round(time.Millisecond))
		if !answered || silent != hanging || took > 3*askTimeout {
			t.Errorf("list %d after %v: %d hosts are silent, the other one answered: %v", round+1, took, silent, answered)
		}
	}
}

// TestAttackListsOfOneKey: one key has a few calls to all hosts in progress, and all keys a bounded number. Others get their turn when one ends.
func TestAttackListsOfOneKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var all turns
		key := func(id string) quota.Holder { return quota.Holder{Type: quota.APIKey, ID: id} }
		take := func(id string) (func(), error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return all.take(ctx, key(id))
		}
		var ends []func()
		for range mostOfOne {
			end, err := take("flood")
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, end)
		}
		if _, err := take("flood"); !errors.Is(err, errBusy) {
			t.Fatalf("one more: %v", err)
		}
		for i := range mostAsking - mostOfOne {
			if _, err := take(string(rune('A' + i))); err != nil {
				t.Fatalf("another key: %v", err)
			}
		}
		if _, err := take("late"); !errors.Is(err, errBusy) {
			t.Fatalf("beyond the bound of all: %v", err)
		}
		time.AfterFunc(time.Second/2, ends[0])
		end, err := take("late")
		if err != nil {
			t.Fatal(err)
		}
		end()
		end() // again has no effect
		if all.all != mostAsking-1 || all.byKey[key("late")] != 0 {
			t.Errorf("%d turns, %v", all.all, all.byKey)
		}
	})
}

// TestHostsThatWereSilent: a host that did not answer is asked last for a while, until it answers.
func TestHostsThatWereSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s silences
		if s.lately("a") {
			t.Error("silent before it was asked")
		}
		s.note("a", true)
		s.note("b", true)
		if s.note("b", false); !s.lately("a") || s.lately("b") {
			t.Error("the silence was not noted, or the answer")
		}
		if time.Sleep(silentFor + time.Second); s.lately("a") {
			t.Error("silent for ever")
		}
	})
}

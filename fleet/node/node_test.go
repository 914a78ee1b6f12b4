package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
	"boxgate/fleet/member"
	"boxgate/fleet/pki"
	"boxgate/fleet/roster"
)

// founded returns an etcd with a fleet, and the identity of its first host.
func founded(t *testing.T) (*etcdtest.Server, roster.Roster, fleet.Identity) {
	t.Helper()
	server := etcdtest.Start(t)
	r := roster.Roster{Client: server.Client(), Name: "test"}
	id, err := r.Init(t.Context(), roster.Machine{ID: "a1b2c3", Name: "first", Keep: func(fleet.Identity) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	return server, r, id
}

func newNode(t *testing.T, server *etcdtest.Server, id fleet.Identity) *Node {
	t.Helper()
	n, err := New(Config{Access: fleet.Access{Endpoints: []string{server.Endpoint()}}, Fleet: "test", Identity: id, StateDir: t.TempDir(), Version: "v1", Boxes: func() int { return 3 }, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestNoStaleMoment: a host that was cordoned while it was cut off from etcd knows that when it is no longer fenced.
func TestNoStaleMoment(t *testing.T) {
	t.Parallel()
	server, r, id := founded(t)
	link := etcdtest.NewLink(t, server.Endpoint())
	n, err := New(Config{
		Access: fleet.Access{Endpoints: []string{link.Endpoint()}}, Fleet: "test", Identity: id, StateDir: t.TempDir(), Version: "v1", Boxes: func() int { return 0 }, Log: zap.NewNop(), TTL: 2 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, n)
	link.Cut()
	etcdtest.Until(t, "the host is fenced", n.Fenced)
	began := time.Now()
	etcdtest.Until(t, "the follower waits for longer between attempts", func() bool { return time.Since(began) > 2*time.Second })
	if err := r.Cordon(t.Context(), id.Host, true); err != nil {
		t.Fatal(err)
	}
	link.Heal()
	etcdtest.Until(t, "the host is not fenced", func() bool { return !n.Fenced() })
	if !n.Cordoned() {
		t.Error("not fenced, and not cordoned")
	}
}

// TestCordonedAtTheStart: a gateway that starts on a cordoned host knows it before it makes boxes.
func TestCordonedAtTheStart(t *testing.T) {
	t.Parallel()
	server, r, id := founded(t)
	if err := r.Cordon(t.Context(), id.Host, true); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, server, id)
	defer n.Close()
	if err := n.Start(t.Context()); err != nil || n.Fenced() || !n.Cordoned() {
		t.Errorf("%v, fenced %v, cordoned %v", err, n.Fenced(), n.Cordoned())
	}
}

// run starts a node, which ends with the test.
func run(t *testing.T, n *Node) {
	t.Helper()
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); n.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done; _ = n.Close() })
}

// TestNodeInItsFleet: a running node is in the state of the fleet with its boxes, follows the directory, and has a certificate that other
// members accept.
func TestNodeInItsFleet(t *testing.T) {
	t.Parallel()
	server, r, id := founded(t)
	n := newNode(t, server, id)
	run(t, n)
	etcdtest.Until(t, "the node follows the directory", func() bool { return n.hosts.len() == 1 && !n.Fenced() })
	etcdtest.Until(t, "the fleet knows the node", func() bool {
		state, err := r.State(t.Context())
		return err == nil && len(state.Hosts) == 1 && state.Hosts[0].Present && state.Hosts[0].Boxes == 3 && state.Hosts[0].Version == "v1"
	})
	if err := r.Cordon(t.Context(), "a1b2c3", true); err != nil {
		t.Fatal(err)
	}
	etcdtest.Until(t, "the node knows that it is cordoned", n.Cordoned)
	etcdtest.Until(t, "the node has a certificate", func() bool { _, err := n.rotation.Certificate(); return err == nil })
	cert, err := n.rotation.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	if known, ok := n.Peers().Known("a1b2c3"); !ok || string(known) != string(pki.Fingerprint(cert.Leaf)) {
		t.Error("the directory has another key than the certificate")
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(n); err != nil {
		t.Fatal(err)
	}
	if families, err := registry.Gather(); err != nil || len(families) != 9 {
		t.Errorf("%d metrics, %v", len(families), err)
	}
	if err := r.Leave(t.Context(), "a1b2c3"); err != nil {
		t.Fatal(err)
	}
	etcdtest.Until(t, "the removed node is fenced", n.Fenced)
	if _, ok := n.Peers().Known("a1b2c3"); ok {
		etcdtest.Until(t, "the removed host is not trusted", func() bool { _, ok := n.Peers().Known("a1b2c3"); return !ok })
	}
}

// TestUnusableRecords: hosts of a later protocol, and records under the wrong key or that cannot be read, are not trusted.
func TestUnusableRecords(t *testing.T) {
	t.Parallel()
	server, r, id := founded(t)
	k := fleet.KeysOf("test")
	for key, text := range map[string]string{
		k.Host("111111"): `{"id":"111111","protocol":2,"key":"AAAA"}`, k.Host("222222"): `{"id":"a1b2c3","protocol":1,"key":"AAAA"}`, k.Host("333333"): `{`,
		k.Host("444444"): `{"id":"444444","protocol":1}`, k.Host("555555"): `{"id":"555555","protocol":1,"key":"AAAA"}`, k.Watched() + "later/x": `{}`,
	} {
		if _, err := r.Client.Put(t.Context(), key, text); err != nil {
			t.Fatal(err)
		}
	}
	n := newNode(t, server, id)
	run(t, n)
	etcdtest.Until(t, "the usable hosts", func() bool { _, ok := n.Peers().Known("555555"); return ok })
	for _, host := range []string{"111111", "222222", "333333", "444444"} {
		if _, ok := n.Peers().Known(host); ok {
			t.Errorf("host %s is trusted", host)
		}
	}
	if n.Fenced() {
		t.Error("the node is fenced")
	}
}

// TestStarts: which states of etcd end a start, and in which the host starts fenced.
func TestStarts(t *testing.T) {
	t.Parallel()
	server, r, id := founded(t)
	k := fleet.KeysOf("test")
	founding, _, err := fleet.Get(t.Context(), r.Client, k.Founding())
	if err != nil {
		t.Fatal(err)
	}
	other, removed := id, id
	other.Founding, removed.Host = "0123456789abcdef", "ffffff"
	for _, c := range []struct {
		name     string
		id       fleet.Identity
		founding string // "": deleted
		want     error  // nil: the host starts
		fenced   bool
	}{
		{"a member", id, string(founding), nil, false},
		{"another fleet", other, string(founding), ErrOtherFleet, true},
		{"a removed host", removed, string(founding), nil, true},
		{"a later protocol", id, strings.Replace(string(founding), `"protocol":1`, `"protocol":2`, 1), roster.ErrNewer, true},
		{"a fleet that is gone", id, "", nil, true},
	} {
		if c.founding == "" {
			_, err = r.Client.Delete(t.Context(), k.Founding())
		} else {
			_, err = r.Client.Put(t.Context(), k.Founding(), c.founding)
		}
		if err != nil {
			t.Fatal(err)
		}
		n := newNode(t, server, c.id)
		if err := n.Start(t.Context()); !errors.Is(err, c.want) || n.Fenced() != c.fenced {
			t.Errorf("%s: %v, fenced %v", c.name, err, n.Fenced())
		}
		_ = n.Close()
	}
	elsewhere := id
	elsewhere.Fleet = "other"
	if _, err := New(Config{Access: fleet.Access{Endpoints: []string{server.Endpoint()}}, Fleet: "test", Identity: elsewhere, StateDir: t.TempDir(), Version: "v1", Boxes: func() int { return 0 }, Log: zap.NewNop()}); !errors.Is(err, ErrOtherFleet) {
		t.Errorf("a membership of another fleet: %v", err)
	}
	if member.TTL.Seconds() != float64(int(member.TTL.Seconds())) {
		t.Error("etcd counts whole seconds")
	}
}

// TestFencedUntilTheDirectoryIsKnown: a lease alone does not open the fence.
func TestFencedUntilTheDirectoryIsKnown(t *testing.T) {
	t.Parallel()
	server, _, id := founded(t)
	n := newNode(t, server, id)
	defer n.Close()
	if err := n.session.Start(t.Context()); err != nil || n.session.Fenced() {
		t.Fatal(err, n.session.Fenced())
	}
	if !n.Fenced() {
		t.Error("not fenced before the first listing")
	}
	if err := n.follower.List(t.Context()); err != nil || n.Fenced() {
		t.Error(err, n.Fenced())
	}
}

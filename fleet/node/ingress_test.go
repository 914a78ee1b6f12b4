package node

import (
	"bytes"
	"context"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
	"boxgate/fleet/pki"
	"boxgate/fleet/roster"
)

// visited returns a running node whose public URLs other hosts reach.
func visited(t *testing.T, server *etcdtest.Server, id fleet.Identity, at string) *Node {
	t.Helper()
	n, err := New(Config{Access: fleet.Access{Endpoints: []string{server.Endpoint()}}, Fleet: "test", Identity: id, StateDir: t.TempDir(), Version: "v1", Boxes: func() int { return 0 }, Ingress: at, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	run(t, n)
	return n
}

// TestIngressOfOtherHosts: members know the addresses of each other's public URLs, and have secrets in common, until one leaves.
func TestIngressOfOtherHosts(t *testing.T) {
	t.Parallel()
	server, r, first := founded(t)
	text, err := r.Token(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	token, err := pki.ParseToken(text.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.Join(t.Context(), roster.Machine{ID: "b1b2c3", Name: "second", Keep: func(fleet.Identity) error { return nil }}, token)
	if err != nil {
		t.Fatal(err)
	}
	a, b := visited(t, server, first, "192.0.2.1:443"), visited(t, server, second, "[2001:db8::2]:8443")
	etcdtest.Until(t, "the hosts know each other's addresses", func() bool {
		ofB, ok := a.IngressOf("b1b2c3")
		ofA, also := b.IngressOf("a1b2c3")
		return ok && also && ofB == netip.MustParseAddrPort("[2001:db8::2]:8443") && ofA == netip.MustParseAddrPort("192.0.2.1:443")
	})
	if _, ok := a.IngressOf("a1b2c3"); ok {
		t.Error("a host passes visitors on to itself")
	}
	to, from, ok := a.Secrets("b1b2c3")
	back, forth, also := b.Secrets("a1b2c3")
	if !ok || !also || !bytes.Equal(to, forth) || !bytes.Equal(from, back) {
		t.Error("the hosts have no secrets in common")
	}
	if _, _, ok := a.Secrets("ffffff"); ok {
		t.Error("a secret with a stranger")
	}
	if err := r.Cordon(t.Context(), "b1b2c3", true); err != nil { // keeps the fields
		t.Fatal(err)
	}
	etcdtest.Until(t, "the host is cordoned", b.Cordoned)
	if _, _, ok := a.Secrets("b1b2c3"); !ok {
		t.Error("a cordoned host has no secrets")
	}
	if err := r.Leave(t.Context(), "b1b2c3"); err != nil {
		t.Fatal(err)
	}
	etcdtest.Until(t, "the members have no secret with a host that left", func() bool {
		_, _, ok := a.Secrets("b1b2c3")
		_, reached := a.IngressOf("b1b2c3")
		return !ok && !reached
	})
	if err := r.SetIngress(t.Context(), second, "192.0.2.9:443", nil, b.session.Guard); err == nil {
		t.Error("a host that left has an address again")
	}
	if err := r.SetIngress(context.Background(), first, "", nil, a.session.Guard); err != nil {
		t.Error(err)
	}
}

// TestReplacedHostKeepsItsAddressToItself: a host that was replaced while it was cut off from etcd, such as a virtual machine that was paused,
// does not lead the visitors of its successor to itself when it is back.
func TestReplacedHostKeepsItsAddressToItself(t *testing.T) {
	t.Parallel()
	server, r, id := founded(t)
	link := etcdtest.NewLink(t, server.Endpoint())
	old, err := New(Config{
		Access: fleet.Access{Endpoints: []string{link.Endpoint()}}, Fleet: "test", Identity: id, StateDir: t.TempDir(), Version: "v1", Boxes: func() int { return 0 },
		Ingress: "192.0.2.1:443", Address: "192.0.2.1:8700", Log: zap.NewNop(), TTL: 2 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, old)
	address := func() (ingress, calls string) {
		text, _, err := fleet.Get(t.Context(), r.Client, fleet.KeysOf("test").Host(id.Host))
		if err != nil {
			t.Fatal(err)
		}
		h, err := fleet.Decode[fleet.Host](text)
		if err != nil {
			t.Fatal(err)
		}
		return h.Ingress, h.Address
	}
	etcdtest.Until(t, "the host has published its addresses", func() bool {
		ingress, calls := address()
		return ingress == "192.0.2.1:443" && calls == "192.0.2.1:8700"
	})
	link.Cut()
	etcdtest.Until(t, "the host is fenced", old.Fenced)
	next := visited(t, server, id, "192.0.2.2:443")
	etcdtest.Until(t, "the successor has published its address", func() bool {
		ingress, _ := address()
		return ingress == "192.0.2.2:443"
	})
	link.Heal()
	etcdtest.Until(t, "the host that was replaced has followed the directory", func() bool {
		h, ok := old.hosts.get(id.Host)
		return ok && h.Ingress == "192.0.2.2:443"
	})
	for range 3 {
		_ = old.publish(t.Context()) // may fail
		_ = old.advertise(t.Context())
	}
	if ingress, calls := address(); ingress != "192.0.2.2:443" || calls == "192.0.2.1:8700" {
		t.Errorf("visitors are led to %s, and calls to %q", ingress, calls)
	}
	if !old.Fenced() || next.Fenced() {
		t.Error("the wrong one of the two is fenced")
	}
}

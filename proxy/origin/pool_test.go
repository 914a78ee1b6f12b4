package origin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/offer"
	"boxgate/proxy/route"
	"boxgate/relay"
)

// TestHostsRememberedAreBounded names ever new hosts that speak HTTP/1.1 alone.
func TestHostsRememberedAreBounded(t *testing.T) {
	t.Parallel()
	p := newBoxPool(&policy.Box{}, 4, memory.New(1<<20, 1<<20).Account("box"))
	here, _ := net.Pipe()
	for i := range 100 {
		n, err := name.Parse(fmt.Sprintf("h%d.example.com", i))
		if err != nil {
			t.Fatal(err)
		}
		pl, err := p.conns.Acquire(key{name: n}, 0)
		if err == nil {
			err = pl.Add(&Conn{NetConn: here, pool: p, place: pl})
		}
		if err != nil {
			t.Fatal(err)
		}
		pl.Release()
		if n := p.conns.Stats().Ports; n > 8 {
			t.Fatalf("%d hosts", n)
		}
	}
}

// A box resumes its own TLS sessions. A handler that outlives the box cannot restore them.
func TestSessionsEndWithTheBox(t *testing.T) {
	t.Parallel()
	p := New(Config{MaxPerBox: 1})
	who := Client{Box: &policy.Box{ID: "b1"}, Denied: func() *policy.DeniedError { return nil }}
	if _, err := p.poolOf(who); err != nil {
		t.Fatal(err)
	}
	if p.sessionsOf("b1") == nil || p.sessionsOf("b1") != p.sessionsOf("b1") || p.sessionsOf("b2") != nil {
		t.Error("sessions are not kept for a box")
	}
	p.CloseBox("b1")
	if p.sessionsOf("b1") != nil || len(p.pools.boxes) > 0 {
		t.Error("sessions are kept for a box that is gone")
	}
}

// The number of a box's connections to servers follows the current value of its own limit.
func TestConnectionsToServersHaveTheBoxesOwnLimit(t *testing.T) {
	t.Parallel()
	box := &policy.Box{}
	p := newBoxPool(box, 4, memory.New(1<<30, 1<<30).Account("box"))
	for _, limit := range []int64{2, 6, 3, 0} {
		box.Limits.Store(policy.Limits{policy.LimitUpstreams: limit})
		var places []*place
		for pl, err := p.conns.Acquire(key{}, 0); err == nil; pl, err = p.conns.Acquire(key{}, 0) {
			places = append(places, pl)
		}
		if limit == 0 {
			limit = 4
		}
		if len(places) != int(limit) {
			t.Errorf("%d connections are made, want %d", len(places), limit)
		}
		for _, pl := range places {
			pl.Release()
		}
	}
}

func TestMemoryOfHostsIsBounded(t *testing.T) {
	t.Parallel()
	var h hosts
	for i := range 3 * maxHosts {
		hostName, err := name.Parse(fmt.Sprintf("n%d.example", i))
		if err != nil {
			t.Fatal(err)
		}
		at := host{hostName, 443}
		h.offers.note(at, offer.Offer{Version: tls.VersionTLS11}, time.Hour)
		h.logins.note(at, struct{}{}, 0)
		o, known := h.offers.find(at)
		_, other := h.offers.find(host{hostName, 444})
		_, late := h.logins.find(at)
		if o.Version != tls.VersionTLS11 || !known || other || late {
			t.Fatalf("%v, known %v, another port %v, after its time %v", o, known, other, late)
		}
	}
	if len(h.offers.known) != maxHosts || len(h.logins.known) != maxHosts {
		t.Errorf("%d and %d hosts are known, want %d", len(h.offers.known), len(h.logins.known), maxHosts)
	}
}

// TestKeysOfTargets: connections by one upstream proxy are for no request that goes by another, directly, or with other
// credentials.
func TestKeysOfTargets(t *testing.T) {
	t.Parallel()
	seen := map[key]string{}
	for _, url := range []string{"", "http://a.test:3128", "https://a.test:3128", "http://b.test:3128", "http://a.test:3129", "socks5://a.test:3128"} {
		for _, password := range []string{"", "one", "two"} {
			if url == "" && password != "" {
				continue
			}
			c, err := policy.Compile(spec(url), policy.Options{Version: 1, Headers: rules(t, password), Protected: name.NewProtected(nil, nil)})
			if err != nil {
				t.Fatal(err)
			}
			host, _ := name.Parse("server.test")
			rt := route.Routed{Asked: policy.Request{Name: host, Port: 443, Protocol: policy.TCP}, Known: policy.Evidence{Opening: policy.OpeningSecure}}
			rt.UpdateNow(c)
			to := To(rt, true)
			k := to.key()
			if rt.Action != policy.Forward || rt.Upstream.URL() != url {
				t.Fatalf("%s: %+v", url, rt)
			}
			if other, twice := seen[k]; twice && (password == "" || url == "http://a.test:3128") {
				t.Errorf("%s with %q shares its connections with %s", url, password, other)
			}
			seen[k] = url + " " + password
		}
	}
}

// TestAuditedConnectionsAreNotShared: a connection that was made only because the policy is audited carries no request that may have
// credentials, and one of these is judged by the policy itself.
func TestAuditedConnectionsAreNotShared(t *testing.T) {
	t.Parallel()
	host, _ := name.Parse("server.test")
	asked := policy.Request{Name: host, Port: 443, Protocol: policy.TCP, Method: "GET", Path: "/"}
	keys := map[bool]key{}
	for audited, allowed := range map[bool]string{false: "server.test", true: "other.test"} {
		s := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{allowed}}
		c, err := policy.Compile(s, policy.Options{Version: 1, Protected: name.NewProtected(nil, nil), Audit: true})
		if err != nil {
			t.Fatal(err)
		}
		rt := route.Routed{Asked: asked, Known: policy.Evidence{Opening: policy.OpeningSecure}}
		rt.UpdateNow(c)
		to := To(rt, true)
		k := to.key()
		keys[audited] = k
		dial := asked
		dial.Stage, dial.Addr = policy.StageDial, netip.MustParseAddr("8.8.8.8")
		if rt.Audited != audited || k.decider(c).IsAudited() != audited || !k.decider(c).Decide(dial).Allowed() {
			t.Errorf("audited %v: %+v, judged by an audited policy: %v", audited, rt, k.decider(c).IsAudited())
		}
	}
	if keys[true] == keys[false] {
		t.Error("they share a connection")
	}
}

func spec(url string) policy.Spec {
	s := policy.Spec{Mode: policy.ModeAllowAll}
	if url != "" {
		s.UpstreamProxy = &policy.UpstreamSpec{URL: url}
	}
	return s
}

// rules have a login for one of the proxies.
func rules(t *testing.T, password string) []policy.HeaderRule {
	t.Helper()
	if password == "" {
		return nil
	}
	out, err := policy.ParseHeaderRules([]byte(`{"a.test:3128": {"proxy": {"scheme": "http", "username": "u", "password": "`+password+`"}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestReadsEndWithTheClient polls the client only when the time for that has come, and reads on while it is there.
func TestReadsEndWithTheClient(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked, gone := 0, false
	w := &wait{conn: here, ctx: ctx, gone: func() bool { asked++; return gone }}
	r := &relay.ServerReader{Conn: here}
	elapse := func() { _ = here.SetReadDeadline(time.Now()) } // as one that an earlier exchange has set
	b := make([]byte, 8)
	r.Begin(w, time.Minute)
	elapse()
	go func() { _, _ = there.Write([]byte("late")) }()
	if n, err := r.Read(b); string(b[:n]) != "late" || err != nil || asked > 0 {
		t.Fatalf("%q, %v; the client was polled %d times", b[:n], err, asked)
	}
	gone = true
	r.Begin(w, time.Nanosecond)
	if _, err := r.Read(b); !errors.Is(err, relay.ErrClientGone) || asked != 1 {
		t.Errorf("a client that is gone: %v; it was polled %d times", err, asked)
	}
	cancel()
	r.Begin(w, time.Minute)
	elapse()
	if _, err := r.Read(b); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that was cancelled: %v", err)
	}
	_ = there.Close()
	if _, err := r.Read(b); err == nil {
		t.Error("a read from a closed connection succeeded")
	}
}

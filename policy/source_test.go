package policy

import (
	"net/netip"
	"testing"

	"boxgate/policy/name"
)

func TestParseSource(t *testing.T) {
	v4, v6 := netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8::7")
	for _, c := range []struct {
		list []string
		want Source
		ok   bool
	}{
		{nil, Source{}, true},
		{[]string{"203.0.113.7"}, Source{V4: v4}, true},
		{[]string{"2001:db8::7", "203.0.113.7"}, Source{v4, v6}, true},
		{[]string{"203.0.113.7", "203.0.113.8"}, Source{}, false},
		{[]string{"::ffff:203.0.113.7"}, Source{}, false},
		{[]string{"fe80::1%eth0"}, Source{}, false},
		{[]string{"fe80::1"}, Source{}, false},
		{[]string{"127.0.0.1"}, Source{}, false},
		{[]string{"0.0.0.0"}, Source{}, false},
		{[]string{"224.0.0.1"}, Source{}, false},
		{[]string{"203.0.113.0/24"}, Source{}, false},
		{[]string{""}, Source{}, false},
	} {
		got, err := ParseSource(c.list)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%q: %+v, %v", c.list, got, err)
		}
	}
}

// A connection without a source address is denied, also the gateway's own ones: to proxies that rules forward to, and to
// upstream proxies.
func TestNothingLeavesWithoutASource(t *testing.T) {
	headers := mustRules(t, `{"api.example.com": {"forward_url": "https://proxy.example.com"}}`)
	lost := netip.MustParseAddr("2001:db8::7")
	compile := func(upstream *HostUpstream) *Compiled {
		c, err := Compile(Spec{Mode: ModeAllowAll}, Options{
			Version: 1, Headers: headers, Protected: &name.Protected{}, Upstream: upstream,
			Source: Source{V4: netip.MustParseAddr("203.0.113.7"), V6: lost},
			Unusable: func(a netip.Addr) string {
				if a == lost {
					return "lost"
				}
				return ""
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	to := func(a string) Request {
		return Request{Stage: StageDial, Name: mustName(t, "proxy.example.com"), Addr: netip.MustParseAddr(a), Port: 443, Protocol: TCP}
	}
	unknown, err := Compile(Spec{Mode: ModeAllowAll}, Options{Protected: &name.Protected{}, Source: Source{V4: netip.MustParseAddr("203.0.113.7")}})
	if err != nil {
		t.Fatal(err)
	}
	if d := unknown.Decide(to("198.51.100.1")); d.Allowed() || d.Reason != name.ReasonSourceAddress {
		t.Errorf("from an address of which nothing is known: %+v", d)
	}
	c := compile(nil)
	for what, decides := range map[string]*Compiled{"the box": c, "a proxy of forward_url": c.Forwarding()} {
		if d := decides.Decide(to("198.51.100.1")); !d.Allowed() {
			t.Errorf("%s, IPv4: %+v", what, d)
		}
		if d := decides.Decide(to("2001:db8:2::1")); d.Allowed() || d.Reason != name.ReasonSourceAddress || d.Rule != "lost" {
			t.Errorf("%s, IPv6: %+v", what, d)
		}
	}
	if c.Forwards(netip.MustParseAddr("2001:db8:2::1"), 80, TCP) || !c.Forwards(netip.MustParseAddr("198.51.100.1"), 80, TCP) {
		t.Error("the kernel forwards what has no address, or not what has one")
	}
	if plan := c.Kernel(); !plan.Sourced || plan.Source != (Source{V4: netip.MustParseAddr("203.0.113.7")}) {
		t.Errorf("the plan: %+v", plan)
	}
	proxy, err := ParseUpstream("http://[2001:db8:3::1]:3128")
	if err != nil {
		t.Fatal(err)
	}
	by, err := NewHostUpstream(*proxy, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	c = compile(by)
	if d := c.Decide(to("2001:db8:2::1")); !d.Allowed() {
		t.Errorf("by a proxy: %+v", d)
	}
	if d := c.Reach(c.upstream).Decide(to("2001:db8:3::1")); d.Allowed() || d.Reason != name.ReasonSourceAddress {
		t.Errorf("to the proxy: %+v", d)
	}
}

// A change of the source is one that open connections do not outlive.
func TestOtherSourcesCutConnections(t *testing.T) {
	compile := func(s Source) *Compiled {
		c, err := Compile(Spec{Mode: ModeAllowAll}, Options{Version: 1, Protected: &name.Protected{}, Source: s, Unusable: func(netip.Addr) string { return "" }})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first, second := Source{V4: netip.MustParseAddr("203.0.113.7")}, Source{V4: netip.MustParseAddr("203.0.113.8")}
	asked := Request{Stage: StageConn, Addr: netip.MustParseAddr("198.51.100.1"), Port: 22, Protocol: TCP}
	known := Evidence{Opening: OpeningOther, Dialled: asked.Addr, Ruled: No}
	rt := compile(first).Route(asked, known)
	if rt.Action != Splice || rt.From != first {
		t.Fatalf("%+v", rt)
	}
	rt.Settle(&known)
	if now := compile(first).Route(asked, known); !now.Keeps(rt.Action) {
		t.Errorf("from the same address: %+v", now)
	}
	for _, s := range []Source{second, {}} {
		if now := compile(s).Route(asked, known); now.Keeps(rt.Action) || now.Decision.Reason != name.ReasonPolicyChanged {
			t.Errorf("from %v: %+v", s, now)
		}
		if Loosens(compile(first).Kernel(), compile(s).Kernel()) || Loosens(compile(s).Kernel(), compile(first).Kernel()) {
			t.Errorf("from %v: passes for a change that only opens", s)
		}
	}
}

package policy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule/header"
)

func mustName(t testing.TB, s string) name.Name {
	t.Helper()
	n, err := name.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// mustSpec parses a policy without checking it: Compile does that.
func mustSpec(t testing.TB, doc string) (s Spec) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(doc))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

func mustHeaders(t testing.TB, m map[string]map[string]string) []HeaderRule {
	t.Helper()
	rules, err := ParseHeaders(m)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// TestZeroValuesDeny: every zero value denies, and does not panic.
func TestZeroValuesDeny(t *testing.T) {
	t.Parallel()
	req := Request{Stage: StageConn, Name: mustName(t, "a.test"), Addr: netip.MustParseAddr("1.1.1.1"), Port: 443, Protocol: TCP}
	var live Live
	for label, c := range map[string]*Compiled{"nil": nil, "zero": {}, "live": live.Load()} {
		if d := c.Decide(req); d.Allowed() || d.Reason != name.ReasonNoPolicy {
			t.Errorf("%s policy: %+v", label, d)
		}
		plan := c.Kernel()
		if plan.DefaultAllow || len(plan.Allowed) > 0 || c.ResolvesOthers(req.Name) || c.Intercepts(req.Name, 443) || len(c.Warnings()) > 0 {
			t.Errorf("%s policy opens something: %+v", label, plan)
		}
	}
	if _, protected := (*name.Protected)(nil).Contains(req.Addr); !protected {
		t.Error("nil protected ranges protect nothing")
	}
	if _, protected := name.NewProtected(nil, nil).Contains(netip.Addr{}); !protected {
		t.Error("an invalid address is not protected")
	}
	open, err := Compile(Spec{Mode: ModeAllowAll}, Options{Version: 1})
	if err != nil {
		t.Fatal(err)
	}
	if d := open.Decide(req); d.Allowed() || d.Reason != name.ReasonProtectedRange {
		t.Errorf("protected ranges unknown: %+v", d)
	}
	if d := open.Decide(Request{}); d.Allowed() {
		t.Errorf("an empty request: %+v", d)
	}
	unknown, err := Compile(Spec{Mode: ModeAllowAll}, Options{Version: 1, Protected: name.NewProtected(nil, []netip.Prefix{{}})})
	if err != nil {
		t.Fatal(err)
	}
	if d := unknown.Decide(req); d.Allowed() {
		t.Errorf("a host address that is not valid: %+v", d)
	}
	if _, err := Compile(Spec{Mode: ModeAllowAll}, Options{Version: 1, Headers: []HeaderRule{{}}}); err == nil {
		t.Error("a header rule without pattern compiles")
	}
}

// TestCompiledIsImmutable: later changes to the caller's slices have no effect.
func TestCompiledIsImmutable(t *testing.T) {
	t.Parallel()
	spec := Spec{Mode: ModeCustom, AllowedDomains: []string{"a.test"}, Rules: []match.RequestRule{{Hosts: []string{"a.test"}, Action: "deny"}}}
	c, err := Compile(spec, Options{Version: 3, Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	want := c.Spec()
	spec.AllowedDomains[0], spec.Rules[0].Hosts[0] = "evil.test", "evil.test"
	c.Spec().AllowedDomains[0] = "evil.test"
	if got := c.Spec(); !reflect.DeepEqual(got, want) || got.AllowedDomains[0] != "a.test" {
		t.Errorf("the policy changed: %+v", got)
	}
	if c.Version() != 3 || c.Kernel().Version != 3 {
		t.Error("the version is lost")
	}
}

func TestMergeHeaders(t *testing.T) {
	t.Parallel()
	global := mustHeaders(t, map[string]map[string]string{
		"a.test": {"x-a": "global", "x-b": "global"}, "b.test:443": {"x-b": "global"}, "*.a.test": {"x-c": "global"}, "c.test": {"x": "1"},
	})
	box := mustHeaders(t, map[string]map[string]string{"A.test": {"x-a": "box"}, "b.test": {}, "a.test:8443": {"x-a": "port"}})
	var got []string
	for _, r := range MergeHeaders(global, box) {
		for _, h := range header.Of(r.Effects) {
			got = append(got, r.Pattern.String()+" "+h.Name+" "+h.Literal.Reveal())
		}
	}
	want := []string{"*.a.test X-C global", "a.test X-A box", "a.test:8443 X-A port", "c.test X 1"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestHeaderLimits(t *testing.T) {
	t.Parallel()
	hosts, headers := map[string]map[string]string{}, map[string]string{}
	for i := range 256 {
		hosts[fmt.Sprintf("h%d.test", i)] = map[string]string{"x": "1"}
	}
	for i := range 64 {
		headers[fmt.Sprintf("x-%d", i)] = strings.Repeat("v", 8<<10)
	}
	hosts["h0.test"] = headers
	mustHeaders(t, hosts)
	headers["x-64"] = "1"
	if _, err := ParseHeaders(hosts); err == nil {
		t.Error("65 headers for one host are accepted")
	}
	delete(headers, "x-64")
	headers["x-0"] += "v"
	if _, err := ParseHeaders(hosts); err == nil {
		t.Error("a value of 8 KiB and one byte is accepted")
	}
	headers["x-0"] = ""
	hosts["one.more.test"] = nil
	if _, err := ParseHeaders(hosts); err == nil {
		t.Error("257 hosts are accepted")
	}
}

// TestResolvesOthers: by default, only a policy that lists addresses alone lets other names be resolved.
func TestResolvesOthers(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]bool{
		`{"mode":"custom","allowed_cidrs":["1.1.1.1"]}`:                                                        true,
		`{"mode":"custom","allowed_cidrs":["1.1.1.1"],"dns":"strict"}`:                                         false,
		`{"mode":"custom","allowed_cidrs":["1.1.1.1"],"allowed_domains":["a.test"]}`:                           false,
		`{"mode":"custom","allowed_cidrs":["1.1.1.1"],"allowed_domains":["a.test"],"dns":"resolve"}`:           true,
		`{"mode":"custom","allowed_cidrs":["1.1.1.1"],"denied_domains":["a.test"],"denied_cidrs":["1.0.0.1"]}`: true,
		`{"mode":"custom","denied_cidrs":["1.1.1.1"]}`:                                                         false,
		`{"mode":"allow-all"}`: false,
		`{"mode":"deny-all"}`:  false,
	} {
		c, err := Compile(mustSpec(t, doc), Options{Version: 1})
		if err != nil {
			t.Fatal(err)
		}
		if c.ResolvesOthers(name.Name{}) != want {
			t.Errorf("%s: %t", doc, !want)
		}
	}
}

// TestDecideDoesNotAllocate, with 1,000 domains and 1,000 CIDRs.
func TestDecideDoesNotAllocate(t *testing.T) {
	c := bigPolicy(t)
	for _, r := range bigRequests(t) {
		if n := testing.AllocsPerRun(100, func() { c.Decide(r) }); n > 0 {
			t.Errorf("%+v: %v allocations", r, n)
		}
	}
}

func bigPolicy(t testing.TB) *Compiled {
	spec := Spec{Mode: ModeCustom}
	for i := range 500 {
		spec.AllowedDomains = append(spec.AllowedDomains, fmt.Sprintf("host%d.example%d.com", i, i%50), fmt.Sprintf("*.svc%d.example.net", i))
		spec.AllowedCIDRs = append(spec.AllowedCIDRs, fmt.Sprintf("%d.%d.0.0/16", 11+i%80, i/4), fmt.Sprintf("2600:%x::/32", i))
	}
	spec.DeniedDomains = []string{"*.denied.example.net", "bad.example.org"}
	spec.DeniedCIDRs = []string{"8.8.8.0/24"}
	c, err := Compile(spec, Options{Version: 1, Headers: mustHeaders(t, map[string]map[string]string{"*.svc7.example.net": {"x": "1"}}), Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func bigRequests(t testing.TB) map[string]Request {
	deep := mustName(t, "a.b.c.svc499.example.net")
	return map[string]Request{
		"name":      {Stage: StageConn, Name: mustName(t, "host7.example7.com"), Addr: netip.MustParseAddr("104.16.1.1"), Port: 443, Protocol: TCP},
		"deep name": {Stage: StageConn, Name: deep, Addr: netip.MustParseAddr("2a00:1450::1"), Port: 443, Protocol: TCP},
		"address":   {Stage: StageKernel, Addr: netip.MustParseAddr("12.1.0.1"), Port: 22, Protocol: TCP},
		"unknown":   {Stage: StageConn, Name: mustName(t, "www.some.other.host.org"), Addr: netip.MustParseAddr("104.16.1.1"), Port: 443, Protocol: TCP},
		"dns":       {Stage: StageDNS, Name: deep},
		"protected": {Stage: StageDial, Name: deep, Addr: netip.MustParseAddr("169.254.169.254"), Port: 80, Protocol: TCP},
	}
}

func BenchmarkDecide(b *testing.B) {
	c := bigPolicy(b)
	for name, r := range bigRequests(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Decide(r)
			}
		})
	}
}

func BenchmarkRoute(b *testing.B) {
	c, r := bigPolicy(b), bigRequests(b)["name"]
	for name, o := range map[string]Opening{"tls": OpeningTLS, "request": OpeningSecure, "unread": OpeningOther} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Route(r, Evidence{Opening: o, Ruled: No})
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	spec, protected := bigPolicy(b).Spec(), name.NewProtected(nil, nil)
	for b.Loop() {
		if _, err := Compile(spec, Options{Version: 1, Protected: protected}); err != nil {
			b.Fatal(err)
		}
	}
}

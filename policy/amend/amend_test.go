package amend

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/policy/dialect"
	"boxgate/policy/name"
	"boxgate/policy/policytest"
)

func entry(t *testing.T, s string) Entry {
	t.Helper()
	e, err := ParseEntry(s)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func spec(t *testing.T, text string) policy.Spec {
	t.Helper()
	s, err := dialect.ParseSpec([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s
}

func text(t *testing.T, s policy.Spec) string {
	t.Helper()
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestChanges: what becomes of policies of every kind, and what is said.
func TestChanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, change, after, said string }{
		{`{"mode":"allow-all"}`, "allow a.com", "", "the mode allow-all allows it already"},
		{`{"mode":"deny-all"}`, "allow a.com", `{"mode":"custom","allowed_domains":["a.com"]}`, "the mode was deny-all"},
		{`{"mode":"deny-all"}`, "allow 1.1.1.1", `{"mode":"custom","allowed_cidrs":["1.1.1.1"],"dns":"strict"}`, "the mode was deny-all"},
		{`{"mode":"custom","allowed_domains":["b.com"]}`, "allow a.com", `{"mode":"custom","allowed_domains":["b.com","a.com"]}`, "allowed"},
		{`{"mode":"custom","allowed_domains":["b.com"]}`, "allow cluster:services", `{"mode":"custom","allowed_domains":["b.com"],"allowed_cidrs":["cluster:services"]}`, "allowed"},
		{`{"mode":"custom","allowed_cidrs":["0.0.0.0/0"]}`, "allow cluster:services", `{"mode":"custom","allowed_cidrs":["0.0.0.0/0","cluster:services"],"dns":"resolve"}`, "allowed"},
		{`{"mode":"custom","allowed_cidrs":["cluster:services"]}`, "allow cluster:services", "", `"cluster:services" allows it already`},
		{`{"mode":"custom","precedence":"specific","allowed_domains":["b.com"],"allowed_cidrs":["cluster:services"],"denied_domains":["*.com"]}`, "allow cluster:services", "", `"cluster:services" allows it already`},
		{`{"mode":"custom","precedence":"specific","allowed_domains":["b.com"],"allowed_cidrs":["cluster:services"],"denied_domains":["*.com"]}`, "deny cluster:services", `{"mode":"custom","precedence":"specific","allowed_domains":["b.com"],"allowed_cidrs":["cluster:services"],"denied_domains":["*.com"],"denied_cidrs":["cluster:services"]}`, "denied"},
		{`{"mode":"deny-all"}`, "allow cluster:services", `{"mode":"custom","allowed_cidrs":["cluster:services"],"dns":"strict"}`, "the mode was deny-all"},
		{`{"mode":"allow-all"}`, "allow cluster:services", "error", "is opened by an entry of allowed_cidrs only"},
		{`{"mode":"custom","denied_domains":["b.com"]}`, "allow cluster:services", "error", "is opened by an entry of allowed_cidrs only"},
		{`{"mode":"custom","allowed_domains":["b.com"],"allowed_cidrs":["cluster:services"]}`, "deny cluster:services", `{"mode":"custom","allowed_domains":["b.com"],"allowed_cidrs":["cluster:services"],"denied_cidrs":["cluster:services"]}`, "denied"},
		{`{"mode":"custom","allowed_domains":["*"]}`, "allow web.a.svc.cluster.local", `{"mode":"custom","allowed_domains":["*","web.a.svc.cluster.local"]}`, "allowed"},
		{`{"mode":"custom","allowed_domains":["*","*.svc.cluster.local"]}`, "allow web.a.svc.cluster.local", "", `"*.svc.cluster.local" allows it already`},
		{`{"mode":"custom","allowed_domains":["b.com"]}`, "allow b.com:443", "", `"b.com" allows it already`},
		{`{"mode":"custom","allowed_domains":["b.com:443"]}`, "allow b.com", `{"mode":"custom","allowed_domains":["b.com:443","b.com"]}`, "allowed"},
		{`{"mode":"custom","allowed_domains":["*.b.com"],"denied_domains":["a.b.com"]}`, "allow a.b.com", `{"mode":"custom","allowed_domains":["*.b.com"]}`, `allowed by "*.b.com"`},
		{`{"mode":"custom","allowed_domains":["c.com"],"denied_domains":["a.b.com"]}`, "allow *.b.com", `{"mode":"custom","allowed_domains":["c.com","*.b.com"],"denied_domains":["a.b.com"]}`, `except for "a.b.com"`},
		{`{"mode":"custom","allowed_domains":["c.com"],"denied_domains":["*.b.com"]}`, "allow a.b.com", "error", `is denied by "*.b.com"`},
		{`{"mode":"custom","denied_domains":["b.com"]}`, "allow a.com", "", "allows what it does not deny"},
		{`{"mode":"custom","denied_domains":["b.com","a.com"]}`, "allow a.com", `{"mode":"custom","denied_domains":["b.com"]}`, "not denied any more"},
		{`{"mode":"custom","denied_domains":["a.com"]}`, "allow a.com", `{"mode":"allow-all"}`, "the mode is allow-all now"},
		{`{"mode":"custom","allowed_cidrs":["1.1.1.0/24"]}`, "allow a.com", `{"mode":"custom","allowed_domains":["a.com"],"allowed_cidrs":["1.1.1.0/24"],"dns":"resolve"}`, "allowed"},
		{`{"mode":"custom","allowed_cidrs":["1.1.1.0/24"]}`, "allow 1.1.1.1", "", `"1.1.1.0/24" allows it already`},
		{`{"mode":"allow-all"}`, "deny a.com", `{"mode":"custom","denied_domains":["a.com"]}`, "what is not denied stays open"},
		{`{"mode":"allow-all"}`, "deny 1.1.1.0/24", `{"mode":"custom","denied_cidrs":["1.1.1.0/24"]}`, "what is not denied stays open"},
		{`{"mode":"deny-all"}`, "deny a.com", "", "the mode deny-all denies it already"},
		{`{"mode":"custom","allowed_domains":["a.com:443","a.com:80","b.com"]}`, "deny a.com", `{"mode":"custom","allowed_domains":["b.com"],"denied_domains":["a.com"]}`, "denied"},
		{`{"mode":"custom","allowed_domains":["a.com"]}`, "deny a.com", `{"mode":"custom","allowed_domains":["a.com"],"denied_domains":["a.com"]}`, "denied"},
		{`{"mode":"custom","allowed_domains":["a.com"],"allowed_cidrs":["1.1.1.1"]}`, "deny a.com", `{"mode":"custom","allowed_domains":["a.com"],"denied_domains":["a.com"],"allowed_cidrs":["1.1.1.1"]}`, "denied"},
		{`{"mode":"custom","denied_domains":["*.b.com"]}`, "deny a.b.com", "", `"*.b.com" denies it already`},
		{`{"mode":"custom","precedence":"specific","allowed_domains":["*"],"denied_domains":["*.b.com"]}`, "allow a.b.com", `{"mode":"custom","precedence":"specific","allowed_domains":["*","a.b.com"],"denied_domains":["*.b.com"]}`, "allowed"},
		{`{"mode":"custom","precedence":"specific","allowed_domains":["*","*.b.com"],"denied_domains":["*.com"]}`, "allow a.b.com", "", `"*.b.com" allows it already`},
		{`{"mode":"custom","precedence":"specific","allowed_domains":["*"],"denied_domains":["a.b.com"]}`, "allow a.b.com:443", "error", `is denied by "a.b.com"`},
		{`{"mode":"custom","precedence":"specific","denied_domains":["*.b.com"]}`, "allow a.b.com", "error", "would deny everything else"},
		{`{"mode":"custom","precedence":"specific","denied_domains":["a.com"]}`, "allow a.com", `{"mode":"allow-all"}`, "the mode is allow-all now"},
		{`{"mode":"custom","precedence":"specific","allowed_domains":["*","a.b.com"],"denied_domains":["*.com"]}`, "deny *.b.com", `{"mode":"custom","precedence":"specific","allowed_domains":["*"],"denied_domains":["*.com","*.b.com"]}`, "denied"},
		{`{"mode":"custom","precedence":"specific","allowed_domains":["a.b.com"]}`, "deny *.b.com", `{"mode":"custom","precedence":"specific","allowed_domains":["a.b.com"],"denied_domains":["*.b.com","a.b.com"]}`, "denied"},
		{`{"mode":"custom","precedence":"specific","allowed_domains":["a.b.com"]}`, "deny *.b.com:443", `{"mode":"custom","precedence":"specific","allowed_domains":["a.b.com"],"denied_domains":["*.b.com:443","a.b.com:443"]}`, "denied"},
		{`{"mode":"custom","precedence":"specific","allowed_cidrs":["1.1.1.1","2.2.2.2"],"denied_cidrs":["1.1.0.0/16"]}`, "deny 1.1.1.0/24", `{"mode":"custom","precedence":"specific","allowed_cidrs":["2.2.2.2"],"denied_cidrs":["1.1.0.0/16","1.1.1.0/24"]}`, "denied"},
		{`{"mode":"custom","precedence":"specific","allowed_cidrs":["2.2.2.2"],"denied_cidrs":["1.1.0.0/16"]}`, "deny 1.1.1.0/24", "", `"1.1.0.0/16" denies it already`},
	} {
		before := spec(t, c.before)
		got, err := apply(t, before, c.change)
		if c.after == "error" {
			if err == nil || !strings.Contains(err.Error(), c.said) {
				t.Errorf("%s of %s: %v", c.change, c.before, err)
			}
			continue
		}
		want := c.after
		if want == "" {
			want = c.before
		}
		if err != nil || text(t, got.Spec) != text(t, spec(t, want)) || got.Changed != (c.after != "") || !strings.Contains(got.Said, c.said) {
			t.Errorf("%s of %s: %s %v %q %v", c.change, c.before, text(t, got.Spec), got.Changed, got.Said, err)
		}
		if !reflect.DeepEqual(before, spec(t, c.before)) {
			t.Errorf("%s changed the policy it was given: %s", c.change, text(t, before))
		}
	}
}

func apply(t *testing.T, s policy.Spec, change string) (Change, error) {
	t.Helper()
	verb, host, _ := strings.Cut(change, " ")
	if verb == "allow" {
		return Allow(s, entry(t, host))
	}
	return Deny(s, entry(t, host)), nil
}

// TestNothingElseChanges holds changes of many policies to their word: what the entry is for is decided as asked, all else as
// before.
func TestNothingElseChanges(t *testing.T) {
	t.Parallel()
	entries := []string{"a.com", "a.com:443", "*.a.com", "x.a.com", "b.com", "1.1.1.1", "1.1.1.0/24", "2.2.2.2"}
	for _, before := range policies(t) {
		for _, name := range entries {
			for _, verb := range []string{"allow", "deny"} {
				after, err := apply(t, before, verb+" "+name)
				if err != nil {
					continue // what is denied by more wins
				}
				compare(t, before, after, verb, entry(t, name))
			}
		}
	}
}

// policies are those whose lists have none, one or two entries.
func policies(t *testing.T) []policy.Spec {
	t.Helper()
	all := []policy.Spec{{Mode: policy.ModeAllowAll}, {Mode: policy.ModeDenyAll}}
	names := [][]string{nil, {"a.com"}, {"*.a.com", "b.com:443"}}
	cidrs := [][]string{nil, {"1.1.1.1"}, {"1.1.1.0/24", "3.3.3.3"}}
	for i := range 81 {
		s := policy.Spec{
			Mode: policy.ModeCustom, AllowedDomains: names[i%3], DeniedDomains: names[i/3%3], AllowedCIDRs: cidrs[i/9%3], DeniedCIDRs: cidrs[i/27],
		}
		if i > 0 { // without any entry it is none
			all = append(all, s)
		}
	}
	return append(all, specific()...)
}

// specific are policies with precedence: specific, with exceptions and exceptions from these.
func specific() (all []policy.Spec) {
	names := [][]string{nil, {"a.com"}, {"*.a.com:443"}, {"*"}, {"*.com", "x.a.com"}, {"x.a.com:443", "b.com"}}
	cidrs := [][]string{nil, {"1.1.1.1", "64:ff9b::101:102"}, {"1.1.0.0/16"}, {"1.1.1.0/24", "0.0.0.0/0"}}
	for i := 1; i < len(names)*len(names)*len(cidrs)*len(cidrs); i += nightly.Size(13, 1) {
		all = append(all, policy.Spec{Mode: policy.ModeCustom, Precedence: policy.PrecedenceSpecific, AllowedDomains: names[i%6], DeniedDomains: names[i/6%6],
			AllowedCIDRs: cidrs[i/36%4], DeniedCIDRs: cidrs[i/144]})
	}
	return all
}

// TestBesideSpecific: with precedence: specific, a temporary denial denies everything that it covers, longer allowed entries too, and a
// temporarily allowed entry is denied by an entry of its own length alone. Nothing else changes.
func TestBesideSpecific(t *testing.T) {
	t.Parallel()
	for _, before := range specific() {
		for _, name := range []string{"a.com", "*.a.com", "*.a.com:443", "x.a.com", "x.a.com:443", "*", "1.1.1.1", "1.1.1.0/24", "0.0.0.0/0", "64:ff9b::101:100/120", "::/0"} {
			e := entry(t, name)
			compare(t, before, Change{Spec: Beside(before, nil, []Entry{e})}, "deny", e)
			if _, err := e.Idle(before, true); err == nil && !strings.Contains(name, "::") { // ::/0 allows no NAT64 addresses
				compare(t, before, Change{Spec: Beside(before, []Entry{e}, nil)}, "allow", e)
			}
		}
	}
}

func compare(t *testing.T, before policy.Spec, after Change, verb string, e Entry) {
	t.Helper()
	was, is := compiled(t, before), compiled(t, after.Spec)
	for _, host := range []string{"a.com", "x.a.com", "b.com", "c.com"} {
		for _, port := range []uint16{443, 80} {
			hostName, err := name.Parse(host)
			if err != nil {
				t.Fatal(err)
			}
			asked := policy.Request{Stage: policy.StageConn, Name: hostName, Port: port, Protocol: policy.TCP}
			got := is.Decide(asked).Allowed()
			if want := verb == "allow"; !e.isAddress() && e.pattern.Match(hostName, port) && got != want && !excepted(after, e) {
				t.Errorf("%s %s of %s: %s:%d is allowed: %v", verb, e, text(t, before), host, port, got)
			} else if (e.isAddress() || !e.pattern.Match(hostName, port)) && got != was.Decide(asked).Allowed() {
				t.Errorf("%s %s of %s changes %s:%d", verb, e, text(t, before), host, port)
			}
			if asked = (policy.Request{Stage: policy.StageDNS, Name: hostName}); !is.Decide(asked).Allowed() && was.Decide(asked).Allowed() && verb == "allow" {
				t.Errorf("allow %s of %s: %s is not resolved any more", e, text(t, before), host)
			}
		}
	}
	for _, a := range []string{"1.1.1.1", "1.1.1.2", "2.2.2.2", "3.3.3.3", "9.9.9.9", "64:ff9b::101:101", "64:ff9b::101:102", "64:ff9b::909:909"} {
		addr := netip.MustParseAddr(a)
		asked := policy.Request{Stage: policy.StageKernel, Addr: addr, Port: 5000, Protocol: policy.UDP}
		got := is.Decide(asked).Allowed()
		if covered := e.isAddress() && (e.prefix.Contains(addr) || e.prefix.Contains(name.Untranslated(addr))); covered && got != (verb == "allow") && !excepted(after, e) || !covered && got != was.Decide(asked).Allowed() {
			t.Errorf("%s %s of %s: %s is allowed: %v", verb, e, text(t, before), a, got)
		}
	}
}

// excepted reports whether a change said that a part of the entry remains denied.
func excepted(c Change, e Entry) bool {
	_, denied := e.lists(&c.Spec)
	return e.exceptions(c.Spec, *denied) != ""
}

func compiled(t *testing.T, s policy.Spec) *policy.Compiled {
	t.Helper()
	c, err := policy.Compile(s, policy.Options{Version: 1, Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatalf("%s: %v", text(t, s), err)
	}
	return c
}

// TestEntriesThatAreNone: what a policy would refuse, or read as something else, is no entry.
func TestEntriesThatAreNone(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"https://api.github.com/": `use "api.github.com"`, "10.0.0.1/8": `use "10.0.0.0/8"`, "": "", "*foo.com": "", "a.com:0": "", "::ffff:1.1.1.1": "use",
		"fe80::1%eth0": "zone",
	} {
		if e, err := ParseEntry(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v %v", s, e, err)
		}
	}
}

// TestDiff: entries that one policy lacks, and rules in another order.
func TestDiff(t *testing.T) {
	t.Parallel()
	before := spec(t, `{"mode":"custom","allowed_domains":["a.com","b.com"],"rules":[{"hosts":["a.com"],"action":"allow"},{"hosts":["b.com"],"action":"deny"}]}`)
	after := spec(t, `{"mode":"custom","allowed_domains":["b.com","c.com"],"dns":"strict","precedence":"specific","denied_names":"sink","rules":[{"hosts":["b.com"],"action":"deny"},{"hosts":["a.com"],"action":"allow"}]}`)
	var got []string
	for _, d := range Diff(before, after) {
		got = append(got, d.String())
	}
	want := `+ precedence: specific
+ dns: strict
+ denied_names: sink
- allowed_domains: a.com
+ allowed_domains: c.com
- rules: {"hosts":["a.com"],"action":"allow"}
- rules: {"hosts":["b.com"],"action":"deny"}
+ rules: {"hosts":["b.com"],"action":"deny"}
+ rules: {"hosts":["a.com"],"action":"allow"}`
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	if same := Diff(before, before); len(same) > 0 {
		t.Error(same)
	}
}

// TestDiffSeesEveryField: policies that differ in one field, however deep, are different.
func TestDiffSeesEveryField(t *testing.T) {
	t.Parallel()
	for path, pair := range policytest.Variants() {
		differ := reflect.DeepEqual(pair[0], pair[1]) || len(Diff(pair[0], pair[1])) > 0
		if len(Diff(policy.Spec{}, pair[0])) == 0 || len(Diff(pair[0], policy.Spec{})) == 0 || !differ || len(Diff(pair[0], pair[0])) > 0 {
			t.Errorf("%s is not compared: %v, %v", path, Diff(policy.Spec{}, pair[0]), Diff(pair[0], pair[1]))
		}
	}
}

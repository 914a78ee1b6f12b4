package learn

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/policy"
	"boxgate/policy/dialect"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// at returns one connection to a name, some minutes after noon.
func at(minute int, host string, port uint16) Seen {
	when := noon.Add(time.Duration(minute) * time.Minute)
	return Seen{Destination: Destination{Name: host, Port: port, Protocol: policy.TCP}, Refusal: "not_allowed", Count: 1, First: when, Last: when}
}

func request(minute int, host string, port uint16, method, shape string, paths ...string) Seen {
	s := at(minute, host, port)
	s.Method, s.Shape, s.Paths = method, shape, paths
	return s
}

// TestProposal: names with their ports, the denied lists of the policy, and evidence.
func TestProposal(t *testing.T) {
	t.Parallel()
	now := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"unused.test"}, AllowedCIDRs: []string{"203.0.112.0/24"}, DeniedDomains: []string{"evil.test"}, Precedence: policy.PrecedenceSpecific}
	ntp := Seen{Destination: Destination{Addr: netip.MustParseAddr("8.8.8.8"), Port: 123, Protocol: policy.UDP}, Refusal: "not_allowed", Count: 2, First: noon, Last: noon}
	listed := Seen{Destination: Destination{Addr: netip.MustParseAddr("203.0.112.9"), Port: 22, Protocol: policy.TCP}, Entry: "203.0.112.0/24", Count: 1, First: noon, Last: noon}
	claimed := at(4, "claimed.example.net", 443) // in a ClientHello to a listed address
	claimed.Entry, claimed.Refusal = "203.0.112.0/24", ""
	p := Propose(now, []Seen{claimed, at(3, "b.example.com", 8443), at(1, "b.example.com", 443), at(2, "B.example.com.", 443), ntp, listed})
	want := policy.Spec{Mode: policy.ModeCustom, DNS: policy.DNSStrict, AllowedDomains: []string{"b.example.com:443", "b.example.com:8443"}, AllowedCIDRs: []string{"203.0.112.0/24"}, DeniedDomains: []string{"evil.test"}, Precedence: policy.PrecedenceSpecific}
	if !reflect.DeepEqual(p.Policy, want) {
		t.Errorf("%+v", p.Policy)
	}
	if e := p.Domains[0].Evidence; e.Count != 2 || !e.First.Equal(noon.Add(time.Minute)) || !e.Last.Equal(noon.Add(2*time.Minute)) || !slices.Equal(e.Refusals, []string{"not_allowed"}) {
		t.Errorf("%+v", e)
	}
	if len(p.Apart) != 1 || p.Apart[0].Entry != "8.8.8.8/32" || p.Apart[0].Why != WhyAddress || p.Apart[0].Count != 2 {
		t.Errorf("%+v", p.Apart)
	}
	if p := Propose(now, nil); p.Policy.Mode != policy.ModeDenyAll {
		t.Errorf("%+v", p.Policy)
	}
}

// TestServicesOfACluster keeps the entry for all services of a cluster, with the names that can replace it. Names of services never become
// a wildcard.
func TestServicesOfACluster(t *testing.T) {
	t.Parallel()
	now := policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{policy.ClusterServices}}
	var seen []Seen
	for i := range 10 {
		seen = append(seen, Seen{Destination: Destination{Name: fmt.Sprintf("s%d.default.svc.cluster.local", i), Addr: netip.MustParseAddr("10.96.0.7"), Port: 80, Protocol: policy.TCP}, Entry: policy.ClusterServices, Count: 1, First: noon, Last: noon})
	}
	seen = append(seen, seen[0], Seen{Destination: Destination{Addr: netip.MustParseAddr("10.96.0.8"), Port: 80, Protocol: policy.TCP}, Entry: policy.ClusterServices, Count: 1, First: noon, Last: noon})
	p := Propose(now, seen)
	if !slices.Equal(p.Policy.AllowedCIDRs, []string{policy.ClusterServices}) || len(p.Policy.AllowedDomains) != 0 || len(p.CIDRs) != 1 {
		t.Fatalf("%+v", p)
	}
	if l := p.CIDRs[0]; l.Count != 12 || l.NameN != 10 || len(l.Names) != maxNames || l.Names[0] != "s0.default.svc.cluster.local:80" {
		t.Errorf("%+v", l)
	}
	if _, err := policy.Compile(p.Policy, policy.Options{}); err != nil {
		t.Error(err)
	}
	named := Seen{Destination: Destination{Name: "db.default.svc.cluster.local", Port: 5432, Protocol: policy.TCP}, Count: 1, First: noon, Last: noon}
	for i := range 2 * wildcardFrom { // names in a cluster have different owners
		seen = append(seen[:0:0], named)
		for j := range i {
			other := named
			other.Name = fmt.Sprintf("s%d.default.svc.cluster.local", j)
			seen = append(seen, other)
		}
		if p := Propose(now, seen); slices.ContainsFunc(p.Policy.AllowedDomains, func(d string) bool { return strings.Contains(d, "*") }) {
			t.Errorf("%d names: %q", i+1, p.Policy.AllowedDomains)
		}
	}
}

// TestWildcards: five labels below a name with one owner make a wildcard; four, or names with different owners, do not.
func TestWildcards(t *testing.T) {
	t.Parallel()
	below := func(n int, parent string, port uint16) (seen []Seen) {
		for i := range n {
			seen = append(seen, at(i, fmt.Sprintf("%c.%s", 'a'+i, parent), port))
		}
		return seen
	}
	for _, c := range []struct {
		seen []Seen
		want []string
	}{
		{below(5, "example.com", 443), []string{"*.example.com:443"}},
		{append(below(5, "example.com", 443), at(9, "x.deep.example.com", 443), at(9, "a.example.com", 80), at(9, "example.com", 443)),
			[]string{"*.example.com:443", "a.example.com:80", "example.com:443"}},
		{below(5, "deep.example.com", 443), []string{"*.deep.example.com:443"}},
		{append(below(5, "deep.example.com", 443), below(5, "example.com", 443)...), []string{"*.example.com:443"}},
		{below(2, "github.io", 443), []string{"a.github.io:443", "b.github.io:443"}},
	} {
		if got := Propose(policy.Spec{Mode: policy.ModeDenyAll}, c.seen).Policy.AllowedDomains; !slices.Equal(got, c.want) {
			t.Errorf("%v instead of %v", got, c.want)
		}
	}
	for _, parent := range []string{"com", "co.uk", "github.io", "s3.amazonaws.com", "test", "internal.corp"} {
		for _, s := range Propose(policy.Spec{Mode: policy.ModeDenyAll}, below(20, parent, 443)).Policy.AllowedDomains {
			if strings.HasPrefix(s, "*") {
				t.Errorf("%s for 20 names below %s", s, parent)
			}
		}
	}
	for _, parent := range []string{"amazonaws.com", "us-east-1.amazonaws.com", "core.windows.net"} {
		if got := Propose(policy.Spec{Mode: policy.ModeDenyAll}, below(5, parent, 443)).Policy.AllowedDomains; len(got) != 5 {
			t.Errorf("%v, although names below have different owners", got)
		}
	}
	exceptions := policy.Spec{Mode: policy.ModeCustom, Precedence: policy.PrecedenceSpecific, DeniedDomains: []string{"*.example.com"}}
	if got := Propose(exceptions, below(5, "dev.example.com", 443)).Policy.AllowedDomains; len(got) != 5 {
		t.Errorf("%v lifts a denial with exceptions", got)
	}
	apart := Propose(policy.Spec{Mode: policy.ModeDenyAll}, append(below(5, "example.com", 443), at(9, "telemetry.example.com", 443)))
	if got := apart.Policy.AllowedDomains; len(got) != 5 || len(apart.Apart) != 1 {
		t.Errorf("%v allows %+v", got, apart.Apart)
	}
	if got := Propose(policy.Spec{Mode: policy.ModeDenyAll}, append(below(4, "example.com", 443), below(4, "example.com", 80)...)).Policy.AllowedDomains; len(got) != 8 {
		t.Errorf("%v", got)
	}
}

// TestDoubts: look-alikes, punycode and telemetry are listed apart, unless the policy names them.
func TestDoubts(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]Why{
		"api.githib.com": WhyLookAlike, "githubb.com": WhyLookAlike, "gihtub.com": WhyLookAlike, "github.com.example.net": WhyLookAlike, "pypi.0rg": "",
		"x.registry.npmjs.org.evil.example": WhyLookAlike, "anthr0pic.com": WhyLookAlike, "xn--gthub-n4a.com": WhyPunycode, "o1.ingest.sentry.io": WhyTelemetry,
		"telemetry.nextjs.org": WhyTelemetry, "github.com": "", "api.github.com": "", "example.com": "", "gitea.com": "",
	} {
		p := Propose(policy.Spec{Mode: policy.ModeDenyAll}, []Seen{at(0, host, 443)})
		switch {
		case want == "" && (len(p.Apart) > 0 || !slices.Equal(p.Policy.AllowedDomains, []string{host + ":443"})):
			t.Errorf("%s: %+v", host, p)
		case want != "" && (len(p.Apart) != 1 || p.Apart[0].Why != want || p.Policy.Mode != policy.ModeDenyAll):
			t.Errorf("%s: %+v", host, p)
		}
		p = Propose(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{host}}, []Seen{at(0, host, 443)})
		if len(p.Apart) > 0 {
			t.Errorf("%s, which the policy allows: %+v", host, p.Apart)
		}
	}
}

// TestRules: methods and paths become rules where requests were read and few, and the policy's own rules stay behind them.
func TestRules(t *testing.T) {
	t.Parallel()
	many := request(0, "m.test", 80, "GET", "/{id}", "/1234567")
	many.More = true
	wide := request(0, "w.test", 80, "GET", "/a", "/a", "/b")
	wide.Shape, wide.More = "", true
	now := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"r.test"}, Rules: []match.RequestRule{
		{Hosts: []string{"r.test"}, Methods: []string{"POST"}, Action: match.ActionDeny}, {Hosts: []string{"gone.test"}, Action: match.ActionDeny},
	}}
	allowed := request(0, "r.test", 443, "GET", "/ok", "/ok")
	allowed.Refusal = ""
	p := Propose(now, []Seen{
		request(0, "p.test", 80, "GET", "/a", "/a"), request(1, "p.test", 80, "GET", "/items/{n}/x", "/items/17/x", "/items/18/x"), request(2, "p.test", 80, "HEAD", "/a", "/a"),
		many, wide, allowed, request(3, "r.test", 443, "POST", "/needed", "/needed"), request(4, "odd.test", 80, "GET", "//a", "//a"), at(5, "unread.test", 443),
	})
	rules, err := json.Marshal(p.Policy.Rules)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"hosts":["m.test:80"],"methods":["GET"],"paths":["/*"],"action":"allow"},{"hosts":["m.test:80"],"action":"deny"},` +
		`{"hosts":["p.test:80"],"methods":["GET"],"paths":["/a","/items/*"],"action":"allow"},{"hosts":["p.test:80"],"methods":["HEAD"],"paths":["/a"],"action":"allow"},{"hosts":["p.test:80"],"action":"deny"},` +
		`{"hosts":["r.test:443"],"methods":["POST"],"paths":["/needed"],"action":"allow"},` +
		`{"hosts":["w.test:80"],"methods":["GET"],"action":"allow"},{"hosts":["w.test:80"],"action":"deny"},` +
		`{"hosts":["r.test"],"methods":["POST"],"action":"deny"}]`
	if string(rules) != want {
		t.Errorf("%s\ninstead of\n%s", rules, want)
	}
	if len(p.Requests) != len(p.Policy.Rules) {
		t.Errorf("evidence for %d of %d rules", len(p.Requests), len(p.Policy.Rules))
	}
}

// TestPathsOfABox: paths that a box makes up to look like shapes or patterns, or of which there are many, open no others, and lift no rule.
func TestPathsOfABox(t *testing.T) {
	t.Parallel()
	now := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"r.test"}, Rules: []match.RequestRule{{Hosts: []string{"r.test"}, Action: match.ActionDeny}}}
	paths := func(seen ...Seen) (open []string) {
		for _, r := range Propose(now, seen).Policy.Rules {
			if r.Action == match.ActionAllow {
				open = append(open, cmp.Or(strings.Join(r.Paths, " "), "every path"))
			}
		}
		return open
	}
	long := "/" + strings.Repeat("a", maxPath)
	shapes := map[string]string{"/{1234567": "/{id}", long: "/{id}"} // of the package observe; others are the path
	for path, want := range map[string]string{"/{": "/{", "/a/{n}": "/a/{n}", "/a{id}/...": "/a{id}/...", "/{1234567": "/*", "/a/x*": "", long: "/*"} {
		for _, host := range []string{"r.test", "p.test"} {
			got := strings.Join(paths(request(0, host, 80, "GET", cmp.Or(shapes[path], path), path), request(0, host, 80, "GET", "/ok", "/ok")), "; ")
			if want := strings.TrimSpace("/ok " + want); got != want && got != strings.TrimPrefix(want, "/ok ")+" /ok" {
				t.Errorf("%s of %s opens %q instead of %q", path, host, got, want)
			}
		}
	}
	var many []Seen
	for i := range maxPaths + 1 {
		path := fmt.Sprintf("/%c%c", 'a'+i%26, 'a'+i/26)
		many = append(many, request(0, "r.test", 80, "GET", path, path))
	}
	for what, seen := range map[string][]Seen{"a star": {request(0, "r.test", 80, "GET", "/x*", "/x*")}, "many paths": many} {
		if got := paths(seen...); len(got) > 0 {
			t.Errorf("%s: lifts the rules of the policy for %v", what, got)
		}
	}
}

// TestFloods: a flood of names neither displaces earlier ones nor makes a proposal large, and is counted.
func TestFloods(t *testing.T) {
	t.Parallel()
	var seen []Seen
	for i := range 4096 {
		seen = append(seen, at(10, fmt.Sprintf("n%d.example", i), 443))
		seen = append(seen, Seen{Destination: Destination{Addr: netip.AddrFrom4([4]byte{8, 8, byte(i >> 8), byte(i)}), Port: 53, Protocol: policy.UDP}, Count: 1, First: noon, Last: noon})
	}
	p := Propose(policy.Spec{Mode: policy.ModeDenyAll}, append(seen, at(1, "needed.test", 443)))
	if !slices.Contains(p.Policy.AllowedDomains, "needed.test:443") || len(p.Policy.AllowedDomains) != MaxEntries || len(p.Apart) != MaxApart {
		t.Errorf("%d names, %d apart", len(p.Policy.AllowedDomains), len(p.Apart))
	}
	if want := 4097 - MaxEntries + 4096 - MaxApart; p.Omitted != want {
		t.Errorf("%d omitted instead of %d", p.Omitted, want)
	}
}

// TestManyNames: as many names as a box and its policy can have, all alike, are compared in a moment.
func TestManyNames(t *testing.T) {
	t.Parallel()
	now := policy.Spec{Mode: policy.ModeCustom}
	var seen []Seen
	for i := range policy.MaxEntries {
		now.AllowedDomains = append(now.AllowedDomains, fmt.Sprintf("%s%dx.com:%d", strings.Repeat("a", 40), i, 1+i))
	}
	for i := range 4096 {
		seen = append(seen, at(i, fmt.Sprintf("%s%dyy.com", strings.Repeat("a", 40), i), 443))
	}
	seen[7].Name = strings.Repeat("a", 40) + "7z.com"
	begun := time.Now()
	p := Propose(now, seen)
	if took := time.Since(begun); took > 3*time.Second { // 0.2 s; comparing each with each takes 5 s
		t.Errorf("took %v", took)
	}
	if len(p.Apart) != 1 || p.Apart[0].Like != strings.Repeat("a", 40)+"7x.com" {
		t.Errorf("%+v", p.Apart)
	}
}

// FuzzPropose: whatever was seen, the proposal is a policy, the same in every order, within its bounds, and opens only names that were
// seen or five labels below a name with one owner.
func FuzzPropose(f *testing.F) {
	f.Add("a.example.com b.example.com c.example.com d.example.com e.example.com", "GET", "/a/{n}", "/a/1", uint16(443))
	f.Add("xn--a.test github.com.evil.test *.x 1.2.3.4 a..b", "P OST", "/a/*", "//", uint16(80))
	f.Add("a.github.io b.github.io c.github.io d.github.io e.github.io", "", "", "", uint16(0))
	f.Fuzz(func(t *testing.T, names, method, shape, path string, port uint16) {
		var seen []Seen
		for i, n := range strings.Fields(names) {
			s := request(i, n, port, method, shape, path)
			if addr, err := netip.ParseAddr(n); err == nil {
				s.Name, s.Addr = "", addr
			}
			seen = append(seen, s)
		}
		now := policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"evil.test"}}
		p := Propose(now, seen)
		slices.Reverse(seen)
		if again := Propose(now, seen); !reflect.DeepEqual(p, again) {
			t.Fatalf("%+v, and in another order %+v", p, again)
		}
		text, err := json.Marshal(p.Policy)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := dialect.ParseSpec(text); err != nil {
			t.Fatalf("%s is no policy: %v", text, err)
		}
		if len(p.Domains) > MaxEntries || len(p.Apart) > MaxApart || len(p.Policy.Rules) > maxRules || len(p.Domains) != len(p.Policy.AllowedDomains) {
			t.Fatalf("%d entries, %d apart", len(p.Domains), len(p.Apart))
		}
		for _, s := range p.Policy.AllowedDomains {
			pattern, err := name.ParsePattern(s)
			if err != nil {
				t.Fatal(err)
			}
			matching := map[string]bool{}
			for _, s := range seen {
				if n, err := name.Parse(s.Name); err == nil && pattern.Match(n, s.Port) {
					matching[n.String()] = true
				}
			}
			if pattern.IsWildcard() && (len(matching) < wildcardFrom || !ownedByOne(pattern.Name().String())) || !pattern.IsWildcard() && !matching[pattern.Name().String()] {
				t.Fatalf("%s from %v", s, matching)
			}
		}
	})
}

// BenchmarkPropose measures a proposal for as much traffic as is kept of a box.
func BenchmarkPropose(b *testing.B) {
	var seen []Seen
	for i := range 4096 {
		seen = append(seen, at(i, fmt.Sprintf("n%d.z%d.example", i, i%100), 443))
	}
	for b.Loop() {
		Propose(policy.Spec{Mode: policy.ModeDenyAll}, seen)
	}
}

package remedy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/amend"
	"boxgate/policy/name"
)

// allowing lists the reasons that never deny.
var allowing = []name.Reason{
	name.ReasonAllowAll, name.ReasonAllowedCIDR, name.ReasonAllowedDomain, name.ReasonNotDenied, name.ReasonURL, name.ReasonGateway, name.ReasonWouldDeny, name.ReasonUnnamed,
}

// TestEveryDenialHasARemedy: exactly the reasons that deny have a remedy.
func TestEveryDenialHasARemedy(t *testing.T) {
	t.Parallel()
	for _, r := range name.Reasons() {
		text := For(audit.Event{Reason: r, Box: "b1", Name: "a.example"})
		if has := text != "" && text != elsewhere; has == slices.Contains(allowing, r) {
			t.Errorf("denied by %s: %q", r, text)
		}
		if text := For(audit.Event{Reason: r, Verdict: policy.Allow}); text != "" {
			t.Errorf("allowed by %s: %q", r, text)
		}
	}
}

// TestRemediesOfACluster decides about services of a cluster. The remedy is that of a service, and not an exemption of its address, which
// would open it to UDP, and under any name.
func TestRemediesOfACluster(t *testing.T) {
	t.Parallel()
	domain, _ := name.Parse("cluster.local")
	cluster := policy.NewCluster(domain, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})
	c, err := policy.Compile(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"api.example.com"}},
		policy.Options{Cluster: cluster, Protected: name.NewProtected(nil, nil, cluster.Prefixes()...)})
	if err != nil {
		t.Fatal(err)
	}
	api, _ := name.Parse("api.example.com")
	web, _ := name.Parse("web.default.svc.cluster.local")
	for _, q := range []struct {
		request policy.Request
		want    string
	}{
		{policy.Request{Addr: netip.MustParseAddr("10.96.0.7"), Port: 5432, Protocol: policy.TCP, Stage: policy.StageConn}, "or all services by cluster:services in allowed_cidrs; see: gateway policy get b1"},
		{policy.Request{Addr: netip.MustParseAddr("10.96.0.7"), Port: 53, Protocol: policy.UDP, Stage: policy.StageKernel}, "use TCP; see: gateway policy get b1"},
		{policy.Request{Addr: netip.MustParseAddr("10.96.0.7"), Name: api, Protocol: policy.UDP, Stage: policy.StageDNS}, "list it in allowed_domains; see: gateway policy get b1"},
		{policy.Request{Addr: netip.MustParseAddr("10.7.0.1"), Name: web, Port: 80, Protocol: policy.TCP, Stage: policy.StageConn}, "the operator adds its range to network.cluster.services; see: gateway policy get b1"},
		{policy.Request{Addr: netip.MustParseAddr("10.7.0.1"), Port: 80, Protocol: policy.TCP, Stage: policy.StageConn}, "add 10.7.0.1/32 to network.protected_exempt of the configuration, and then: gateway reload"},
	} {
		d := c.Decide(q.request)
		e := audit.Event{Box: "b1", Verdict: d.Verdict, Reason: d.Reason, Rule: d.Rule, Addr: q.request.Addr, Port: q.request.Port, Protocol: q.request.Protocol, Stage: q.request.Stage}
		if d.Reason != name.ReasonProtectedRange || !strings.HasSuffix(For(e), q.want) {
			t.Errorf("%+v: %+v: %q", q.request, d, For(e))
		}
		if plain := Plain(e); strings.Contains(plain, "GATEWAY") || strings.Contains(plain, "gateway ") {
			t.Errorf("without a gateway: %q", plain)
		}
	}
}

// TestRemedyCanBePasted: a remedy contains the box and the destination, but no text that a box chose freely.
func TestRemedyCanBePasted(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		event audit.Event
		want  string
	}{
		{audit.Event{Box: "b1", Name: "a.example", Port: 443}, "gateway policy allow b1 a.example:443"},
		{audit.Event{Box: "b1", Name: "a.example", Addr: addr, Port: 22, Stage: policy.StageKernel, Protocol: policy.TCP}, "gateway policy allow b1 a.example:22"},
		{audit.Event{Box: "b1", Name: "a.example", Stage: policy.StageDNS, Protocol: policy.UDP}, "gateway policy allow b1 a.example:443 (port 443 alone: a connection that is refused says which port it needs)"},
		{audit.Event{Box: "b1", Name: "a.example", Addr: addr}, "gateway policy get b1"},
		{audit.Event{Box: "b1", Name: "a.example", Addr: addr, Port: 22, Rule: "policy.ceiling: b.example"}, "the operator's limit"},
		{audit.Event{Box: "b1", Addr: addr, Port: 22}, "gateway policy allow b1 192.0.2.1 (no name is known for it, so this opens every port of the address, under any name)"},
		{audit.Event{Box: "b1", Name: "a.example", Addr: addr, Port: 53, Protocol: policy.UDP, Stage: policy.StageKernel}, "gateway policy edit b1"},
		{audit.Event{Box: "b1", Name: "$(reboot).example", Port: 443}, "gateway policy get b1"},
		{audit.Event{Box: "b1"}, "gateway policy get b1"},
		{audit.Event{Box: "b1", BoxName: "web-1"}, "gateway policy get web-1"},
		{audit.Event{Box: "b1", BoxName: "$(reboot)"}, "gateway policy get b1"},
	} {
		c.event.Reason = name.ReasonNotAllowed
		if got := For(c.event); !strings.HasSuffix(got, c.want) || strings.Contains(got, "$") {
			t.Errorf("%+v: %q, want %q", c.event, got, c.want)
		}
	}
}

// TestAttackRemedyOpensMoreThanWasRefused applies, for every reason, the printed command. It must allow the refused
// request, but neither another port of the name, nor another name at the address, nor another address. If only an address
// with all its ports can be allowed, the sentence must contain that warning.
func TestAttackRemedyOpensMoreThanWasRefused(t *testing.T) {
	t.Parallel()
	const label, other = "api.corp.example", "evil.corp.example"
	addr, elsewhere := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	events := []audit.Event{
		{Stage: policy.StageKernel, Protocol: policy.TCP, Name: label, Addr: addr, Port: 22},
		{Stage: policy.StageKernel, Protocol: policy.UDP, Name: label, Addr: addr, Port: 22},
		{Stage: policy.StageKernel, Protocol: policy.ICMP, Name: label, Addr: addr},
		{Stage: policy.StageKernel, Protocol: policy.TCP, Addr: addr, Port: 22},
		{Stage: policy.StageKernel, Protocol: policy.UDP, Addr: addr, Port: 22},
		{Stage: policy.StageConn, Protocol: policy.TCP, Name: label, Addr: addr, Port: 22},
		{Stage: policy.StageConn, Protocol: policy.TCP, Name: label, Port: 22},
		{Stage: policy.StageHTTP, Protocol: policy.TCP, Name: label, Port: 22, Method: "GET", Path: "/"},
		{Stage: policy.StageDNS, Protocol: policy.UDP, Name: label},
		{Stage: policy.StageKernel, Count: 9},
	}
	for _, spec := range []policy.Spec{
		{Mode: policy.ModeDenyAll},
		{Mode: policy.ModeCustom, AllowedDomains: []string{label + ":80", "third.example"}},
		{Mode: policy.ModeCustom, AllowedDomains: []string{"third.example"}, AllowedCIDRs: []string{"198.51.100.0/24"}},
		{Mode: policy.ModeCustom, AllowedDomains: []string{"*"}, DeniedDomains: []string{label + ":22", other}},
		{Mode: policy.ModeCustom, AllowedDomains: []string{"*"}, DeniedDomains: []string{label, other}},
		{Mode: policy.ModeCustom, DeniedDomains: []string{"*.corp.example"}},
	} {
		for _, e := range events {
			e.Box = "b1"
			for _, reason := range name.Reasons() {
				e.Reason = reason
				d := compiled(t, spec).Decide(request(e))
				e.Rule = d.Rule
				text := For(e)
				_, command, printed := strings.Cut(text, "gateway policy allow b1 ")
				if !printed {
					continue
				}
				if d.Allowed() || d.Reason != reason && reason != name.ReasonNoName {
					continue // the policy does not refuse it for this reason
				}
				entry, caveat, _ := strings.Cut(command, " ")
				parsed, err := amend.ParseEntry(entry)
				if err != nil {
					t.Errorf("%+v: %q: %v", e, text, err)
					continue
				}
				change, err := amend.Allow(spec, parsed)
				if err != nil && reason == name.ReasonNoName {
					continue // the command names the denied entry that wins, and changes nothing
				}
				if err != nil {
					t.Errorf("%+v: %q: %v", e, text, err)
					continue
				}
				was, is := compiled(t, spec), compiled(t, change.Spec)
				if got := is.Decide(request(e)); !got.Allowed() {
					t.Errorf("%s: %q is followed, and it is still refused: %v", audit.Line(e), text, got)
				}
				broad := strings.Contains(caveat, "every port of the address")
				if broad != (e.Name == "") {
					t.Errorf("%+v: %q", e, text)
				}
				for _, neighbour := range neighbours(e, other, elsewhere) {
					said := broad && neighbour.Addr == e.Addr
					if is.Decide(neighbour).Allowed() && !was.Decide(neighbour).Allowed() && !said {
						t.Errorf("%s: %q is followed, and %+v is open as well", audit.Line(e), text, neighbour)
					}
				}
			}
		}
	}
}

func compiled(t *testing.T, s policy.Spec) *policy.Compiled {
	t.Helper()
	c, err := policy.Compile(s, policy.Options{Version: 1, Protected: &name.Protected{}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// request returns the refused request.
func request(e audit.Event) policy.Request {
	r := policy.Request{Stage: e.Stage, Addr: e.Addr, Port: e.Port, Protocol: e.Protocol}
	if e.Stage == policy.StageDNS {
		r.Protocol = ""
	}
	if e.Stage == policy.StageHTTP {
		r.Method, r.Path = e.Method, e.Path
	}
	r.Name, _ = name.Parse(e.Name)
	return r
}

// neighbours returns similar requests that were not refused.
func neighbours(e audit.Event, host string, addr netip.Addr) []policy.Request {
	var all []policy.Request
	add := func(change func(*policy.Request)) {
		for _, protocol := range []policy.Protocol{policy.TCP, policy.UDP} {
			r := request(e)
			r.Stage, r.Protocol = policy.StageConn, protocol
			change(&r)
			all = append(all, r)
		}
	}
	add(func(r *policy.Request) { r.Port = 8080 })
	add(func(r *policy.Request) { r.Port = 8080; r.Addr = netip.Addr{} })
	add(func(r *policy.Request) { r.Name, _ = name.Parse(host) })
	add(func(r *policy.Request) { r.Name, _ = name.Parse("x." + e.Name) })
	add(func(r *policy.Request) { r.Name, r.Addr = name.Name{}, addr })
	return all
}

// TestNearMiss: the entry that nearly allows a destination is named; a denial for another reason, or far from every entry, has
// none.
func TestNearMiss(t *testing.T) {
	t.Parallel()
	spec := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"*.corp.example", "a.example:443", "b.example:443", "b.example:8443", "github.com", "api.openai.com:443"}}
	for to, want := range map[string]string{
		"corp.example:443":       `"*.corp.example" does not cover corp.example itself`,
		"a.example:22":           "the policy allows a.example on port 443, not on 22",
		"b.example:22":           "the policy allows b.example on the ports 443, 8443, not on 22",
		"api.github.com:443":     `"github.com" does not cover names below it, such as api.github.com; "*.github.com" does`,
		"githbu.com:443":         `the policy allows "github.com", which is spelled differently`,
		"gitub.com:443":          `the policy allows "github.com", which is spelled differently`,
		"api.opennai.com:443":    `the policy allows "api.openai.com:443", which is spelled differently`,
		"evil.example:443":       "",
		"c.example:443":          "", // too short to be misspelled
		"\x1b[2Jgithub.com:443":  "",
		"notcorp.example:443":    "",
		"gitlab.com:443":         "",
		"github.com.evil.io:443": "",
	} {
		host, port, _ := strings.Cut(to, ":")
		n, _ := strconv.Atoi(port)
		e := audit.Event{Box: "b1", Stage: policy.StageConn, Protocol: policy.TCP, Name: host, Port: uint16(n), Reason: name.ReasonNotAllowed}
		if got := NearMiss(spec, e); got != want {
			t.Errorf("%q: %q, want %q", to, got, want)
		}
		e.Reason = name.ReasonDeniedDomain
		if got := NearMiss(spec, e); got != "" {
			t.Errorf("%q, denied: %q", to, got)
		}
	}
	lookup := audit.Event{Stage: policy.StageDNS, Protocol: policy.UDP, Name: "a.example", Port: 53, Reason: name.ReasonNotAllowed}
	if got := NearMiss(spec, lookup); got != "" {
		t.Errorf("a look-up has no port: %q", got)
	}
}

// TestEveryReasonHasAMeaning: each reason is described in a whole sentence, and no other.
func TestEveryReasonHasAMeaning(t *testing.T) {
	t.Parallel()
	for _, r := range name.Reasons() {
		if text := meanings[r]; !strings.HasSuffix(text, ".") || Meaning(r) != text {
			t.Errorf("%s: %q", r, text)
		}
	}
	if len(meanings) != len(name.Reasons()) || Meaning("new") == "" {
		t.Errorf("%d meanings of %d reasons", len(meanings), len(name.Reasons()))
	}
}

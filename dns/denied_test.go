package dns

import (
	"strings"
	"testing"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestAnswersForDeniedNames checks that names of the search list, and single labels, do not exist unless the policy
// answers otherwise, that allowed names are still resolved, and that denied names are never sent upstream.
func TestAnswersForDeniedNames(t *testing.T) {
	t.Parallel()
	for as, want := range map[policy.DeniedNames]map[string]int{
		"":                    {"db": mdns.RcodeNameError, "db.example.org.cluster.local": mdns.RcodeNameError, "cluster.local": mdns.RcodeNameError, "evil.example": 0, "xcluster.local": 0},
		policy.DeniedSink:     {"db": 0, "db.example.org.cluster.local": 0, "evil.example": 0},
		policy.DeniedNXDOMAIN: {"db": mdns.RcodeNameError, "db.example.org.cluster.local": mdns.RcodeNameError, "evil.example": mdns.RcodeNameError},
		policy.DeniedRefused:  {"db": mdns.RcodeRefused, "db.example.org.cluster.local": mdns.RcodeRefused, "evil.example": mdns.RcodeRefused},
	} {
		spec := domains("*.example.org", "api.cluster.local")
		spec.DeniedNames = as
		b := newBench(t, spec, newZone(t, "db.example.org. 60 IN A "+goodV4, "api.cluster.local. 60 IN A "+goodV4))
		b.box.Search = []name.Name{mustName(t, "default.svc.cluster.local"), mustName(t, "cluster.local")}
		for n, rcode := range want {
			for _, qtype := range []uint16{mdns.TypeA, mdns.TypeAAAA, mdns.TypeTXT} {
				m := b.ask(t, n, qtype)
				sunk := rcode == mdns.RcodeSuccess && isAddress(qtype)
				if m.Rcode != rcode || (len(m.Answer) == 1) != sunk || ede(m) != int(mdns.ExtendedErrorCodeBlocked) {
					t.Errorf("denied_names %q, %s: %v", as, n, m)
				}
				action := audit.ActionRefuse
				if sunk {
					action = audit.ActionSink
				}
				wantEvent(t, b.events.last(t), policy.Deny, action, name.ReasonNotAllowed)
			}
		}
		wantNothingAsked(t, b.zone)
		wantAddresses(t, b.ask(t, "db.example.org", mdns.TypeA), goodV4)
		wantAddresses(t, b.ask(t, "api.cluster.local", mdns.TypeA), goodV4)
	}
}

func TestSearchFromResolvConf(t *testing.T) {
	t.Parallel()
	got := SearchFromResolvConf(strings.NewReader("nameserver 192.0.2.1\nsearch Default.svc.cluster.local. svc.cluster.local bad..name 10.0.0.1 . \noptions ndots:5\n"))
	if len(got) != 2 || got[0].String() != "default.svc.cluster.local" || got[1].String() != "svc.cluster.local" {
		t.Errorf("%v", got)
	}
	many := SearchFromResolvConf(strings.NewReader("search " + strings.Repeat("a.example ", 10_000)))
	if len(many) > maxSearch {
		t.Errorf("%d domains", len(many))
	}
	if got := SearchFromResolvConf(strings.NewReader("\x00\xff" + strings.Repeat("x", 100_000))); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

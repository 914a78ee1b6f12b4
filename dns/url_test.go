package dns

import (
	"testing"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestPublicURLs checks that a public URL of the gateway gets the sink if the policy allows its name, and the policy's
// answer otherwise, on both paths of answering, without any question to upstream.
func TestPublicURLs(t *testing.T) {
	t.Parallel()
	const host, other = "box-8000.preview.example.com", "box-8001.preview.example.com"
	for what, c := range map[string]struct {
		spec    policy.Spec
		allowed name.Reason // "": denied
	}{
		"by name":    {domains(host), name.ReasonAllowedDomain},
		"by domain":  {domains("*.example.com"), name.ReasonAllowedDomain},
		"allow-all":  {policy.Spec{Mode: policy.ModeAllowAll}, name.ReasonAllowAll},
		"deny-all":   {policy.Spec{Mode: policy.ModeDenyAll}, ""},
		"denied":     {policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{host}, DeniedDomains: []string{"*.example.com"}}, ""},
		"not listed": {domains(other), ""},
	} {
		b := newBench(t, c.spec, newZone(t, host+". 60 IN A "+goodV4, host+". 60 IN AAAA "+goodV6, other+". 60 IN A "+goodV4))
		b.isURL = func(n name.Name) bool { return n.String() == host }
		for qtype, sink := range map[uint16][]string{mdns.TypeA: {sinkV4}, mdns.TypeAAAA: {sinkV6}, mdns.TypeHTTPS: nil, mdns.TypeTXT: nil} {
			m := b.ask(t, host, qtype)
			wantAddresses(t, m, sink...)
			if blocked := ede(m) == int(mdns.ExtendedErrorCodeBlocked); m.Rcode != mdns.RcodeSuccess || len(m.Answer) != len(sink) || blocked == (c.allowed != "") {
				t.Errorf("%s: %v", what, m)
			}
			if c.allowed != "" {
				wantEvent(t, b.events.last(t), policy.Allow, audit.ActionSink, c.allowed)
			}
		}
		wantNothingAsked(t, b.zone)
	}
	b := newBench(t, domains("*.example.com"), newZone(t, other+". 60 IN A "+goodV4))
	b.isURL = func(n name.Name) bool { return n.String() == host }
	wantAddresses(t, b.ask(t, other, mdns.TypeA), goodV4)
}

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

func TestHTTPSRecordsLoseWhatLeadsAroundTheGateway(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`1 . alpn="h3,h2" ipv4hint="127.0.0.1,1.2.3.4" ech="AEX+DQ==" ipv6hint="::1"`: `1 . alpn="h2"`,
		`1 . alpn="h3-29,h3,http/1.1" port="8443"`:                                    `1 . alpn="http/1.1" port="8443"`,
		`1 . alpn="h3"`:                                                  `1 .`, // the default protocol remains
		`1 . alpn="h3" no-default-alpn=""`:                               ``,
		`1 . alpn="h2" no-default-alpn=""`:                               `1 . alpn="h2" no-default-alpn=""`,
		`1 . mandatory="alpn,ech" alpn="h2" ech="AEX+DQ=="`:              `1 . mandatory="alpn" alpn="h2"`,
		`1 . mandatory="ech,ipv4hint" ipv4hint="1.2.3.4" ech="AEX+DQ=="`: `1 .`,
		`0 cdn.example.net.`:                                             `0 cdn.example.net.`,
		`1 . alpn="h2" key65400="x"`:                                     `1 . alpn="h2" key65400="x"`,
	} {
		for _, typ := range []string{"HTTPS", "SVCB"} {
			b := newBench(t, domains("w.example.com"), newZone(t, "w.example.com. 60 IN "+typ+" "+in))
			m := b.ask(t, "w.example.com", mdns.StringToType[typ])
			got := ""
			if len(m.Answer) > 0 {
				_, got, _ = strings.Cut(m.Answer[0].String(), typ+"\t")
			}
			if strings.TrimSpace(got) != want {
				t.Errorf("%s %s\n got %q\nwant %q", typ, in, got, want)
			}
		}
	}
}

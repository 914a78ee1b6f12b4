package dns

import (
	"context"
	"slices"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

func TestAllowedNameIsResolvedAndGranted(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("api.example.com"), newZone(t, "api.example.com. 300 IN A "+goodV4, "api.example.com. 300 IN AAAA "+goodV6))
	m := b.ask(t, "aPi.Example.com", mdns.TypeA)
	wantAddresses(t, m, goodV4)
	if ttl := m.Answer[0].Header().Ttl; ttl != 300 {
		t.Errorf("TTL = %d, want 300", ttl)
	}
	if m.Question[0].Name != "aPi.Example.com." || m.Answer[0].Header().Name != "aPi.Example.com." {
		t.Errorf("letter case of the question is not kept:\n%v", m)
	}
	if !m.RecursionAvailable || m.AuthenticatedData || m.Authoritative {
		t.Errorf("flags are wrong:\n%v", m)
	}
	ev := b.events.last(t)
	wantEvent(t, ev, policy.Allow, audit.ActionForward, name.ReasonAllowedDomain)
	if ev.Box != "box1" || ev.Name != "api.example.com" || ev.Protocol != policy.UDP || ev.Version != 1 || ev.Addr.String() != goodV4 {
		t.Errorf("event = %+v", ev)
	}
	wantAddresses(t, b.ask(t, "api.example.com", mdns.TypeAAAA), goodV6)
	if !b.Granted("box1", mustName(t, "api.example.com"), addr(goodV4)) || !b.Granted("box1", mustName(t, "api.example.com"), addr(goodV6)) {
		t.Error("the answers were not remembered")
	}
	if b.Granted("box2", mustName(t, "api.example.com"), addr(goodV4)) {
		t.Error("another box has the grant")
	}
}

func TestDeniedNameGetsSinkAndNothingGoesUpstream(t *testing.T) {
	t.Parallel()
	specs := map[string]policy.Spec{
		"custom":   domains("api.example.com", "*.good.example"),
		"deny-all": {Mode: policy.ModeDenyAll},
		"denied":   {Mode: policy.ModeCustom, DeniedDomains: []string{"evil.example", "*.evil.example", "evil-example.com", "example.com.evil.com", "good.example"}},
	}
	names := []string{"evil.example", "x.evil.example", "evil-example.com", "example.com.evil.com", "good.example"}
	for mode, spec := range specs {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, spec, newZone(t))
			for _, n := range names {
				wantBlocked(t, b.ask(t, n, mdns.TypeA), sinkV4)
				wantEvent(t, b.events.last(t), policy.Deny, audit.ActionSink, b.events.last(t).Reason)
				wantBlocked(t, b.ask(t, n, mdns.TypeAAAA), sinkV6)
				for _, qtype := range []uint16{mdns.TypeTXT, mdns.TypeNULL, mdns.TypeMX, mdns.TypeHTTPS, mdns.TypeCNAME, mdns.TypeNS, 65280} {
					wantBlocked(t, b.ask(t, n, qtype))
					wantEvent(t, b.events.last(t), policy.Deny, audit.ActionRefuse, b.events.last(t).Reason)
				}
			}
			wantNothingAsked(t, b.zone)
			if got := b.ask(t, names[0], mdns.TypeA).Answer[0].Header().Ttl; got > 5 {
				t.Errorf("the sink's TTL is %d", got)
			}
		})
	}
}

func TestReasonsOfTheSink(t *testing.T) {
	t.Parallel()
	for want, spec := range map[name.Reason]policy.Spec{
		name.ReasonNotAllowed:   domains("other.example"),
		name.ReasonDenyAll:      {Mode: policy.ModeDenyAll},
		name.ReasonDeniedDomain: {Mode: policy.ModeCustom, AllowedDomains: []string{"*.example"}, DeniedDomains: []string{"evil.example"}},
	} {
		b := newBench(t, spec, newZone(t))
		b.ask(t, "evil.example", mdns.TypeA)
		wantEvent(t, b.events.last(t), policy.Deny, audit.ActionSink, want)
	}
}

func TestTunnellingNamesStayHere(t *testing.T) {
	t.Parallel()
	b := newBench(t, policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"*.example.com"}, DeniedDomains: []string{"*.evil.example.com"}}, newZone(t))
	label := strings.Repeat("a", 63)
	tunnels := []string{
		label + "." + label + "." + label + ".evil.com",
		label + "." + label + ".evil.example.com", // below a denied name
		"example.com.evil.com", "evil-example.com", "examplE.coM",
		`a\.example.com`, `a\000.example.com`, `\255\254.example.com`, "169.254.169.254", "0x7f000001", ".",
	}
	for _, n := range tunnels {
		for _, qtype := range []uint16{mdns.TypeTXT, mdns.TypeNULL, mdns.TypeCNAME, mdns.TypeANY, mdns.TypeA} {
			b.ask(t, n, qtype)
			if ev := b.events.last(t); ev.Verdict != policy.Deny {
				t.Errorf("%s %s: event = %+v", n, mdns.Type(qtype), ev)
			}
		}
	}
	wantNothingAsked(t, b.zone)
}

func TestNamesThatAreNoHostNamesAreNotAllowedByAnyPolicy(t *testing.T) {
	t.Parallel()
	b := newBench(t, policy.Spec{Mode: policy.ModeAllowAll}, newZone(t))
	wantBlocked(t, b.ask(t, `a\.b.example.com`, mdns.TypeA), sinkV4)
	wantEvent(t, b.events.last(t), policy.Deny, audit.ActionSink, name.ReasonNotAllowed)
	wantNothingAsked(t, b.zone)
}

func TestRefusedQueries(t *testing.T) {
	t.Parallel()
	b := newBench(t, policy.Spec{Mode: policy.ModeAllowAll}, newZone(t))
	query := func(change func(*mdns.Msg)) *mdns.Msg {
		q := newQuery("example.com", mdns.TypeA)
		change(q)
		return q
	}
	for _, tc := range []struct {
		what   string
		q      *mdns.Msg
		rcode  int
		reason name.Reason
	}{
		{"ANY", newQuery("example.com", mdns.TypeANY), mdns.RcodeRefused, name.ReasonProtocol},
		{"AXFR", newQuery("example.com", mdns.TypeAXFR), mdns.RcodeRefused, name.ReasonProtocol},
		{"IXFR", newQuery("example.com", mdns.TypeIXFR), mdns.RcodeRefused, name.ReasonProtocol},
		{"MAILA", newQuery("example.com", mdns.TypeMAILA), mdns.RcodeRefused, name.ReasonProtocol},
		{"TKEY", newQuery("example.com", mdns.TypeTKEY), mdns.RcodeRefused, name.ReasonProtocol},
		{"OPT", newQuery("example.com", mdns.TypeOPT), mdns.RcodeRefused, name.ReasonProtocol},
		{"type 0", newQuery("example.com", 0), mdns.RcodeRefused, name.ReasonProtocol},
		{"CHAOS", query(func(q *mdns.Msg) { q.Question[0].Qclass = mdns.ClassCHAOS }), mdns.RcodeRefused, name.ReasonProtocol},
		{"class ANY", query(func(q *mdns.Msg) { q.Question[0].Qclass = mdns.ClassANY }), mdns.RcodeRefused, name.ReasonProtocol},
		{"update", query(func(q *mdns.Msg) { q.Opcode = mdns.OpcodeUpdate }), mdns.RcodeNotImplemented, name.ReasonProtocol},
		{"notify", query(func(q *mdns.Msg) { q.Opcode = mdns.OpcodeNotify }), mdns.RcodeNotImplemented, name.ReasonProtocol},
		{"two questions", query(func(q *mdns.Msg) { q.Question = append(q.Question, q.Question[0]) }), mdns.RcodeFormatError, name.ReasonBadRequest},
		{"no question", query(func(q *mdns.Msg) { q.Question = nil }), mdns.RcodeFormatError, name.ReasonBadRequest},
		{"an answer", query(func(q *mdns.Msg) { q.Answer = []mdns.RR{mustRR("x. A 1.1.1.1")} }), mdns.RcodeFormatError, name.ReasonBadRequest},
		{"two OPTs", query(func(q *mdns.Msg) { q.Extra = append(q.Extra, q.Extra[0]) }), mdns.RcodeFormatError, name.ReasonBadRequest},
		{"EDNS 1", query(func(q *mdns.Msg) { q.IsEdns0().SetVersion(1) }), mdns.RcodeBadVers, name.ReasonProtocol},
	} {
		m := b.exchange(t, tc.q, policy.UDP)
		if m.Rcode != tc.rcode || m.Id != tc.q.Id || !m.Response || len(m.Answer) > 0 || m.Opcode != tc.q.Opcode {
			t.Errorf("%s: got\n%v", tc.what, m)
		}
		wantEvent(t, b.events.last(t), policy.Deny, audit.ActionRefuse, tc.reason)
	}
	wantNothingAsked(t, b.zone)
}

func TestMalformedBytes(t *testing.T) {
	t.Parallel()
	b := newBench(t, policy.Spec{Mode: policy.ModeAllowAll}, newZone(t))
	good, _ := newQuery("example.com", mdns.TypeA).Pack()
	handle := func(wire []byte) []byte { return b.Handle(context.Background(), b.box, policy.UDP, wire) }
	if out := handle(good[:11]); out != nil {
		t.Errorf("half a header was answered: %x", out)
	}
	response := slices.Clone(good)
	response[2] |= 0x80
	if out := handle(response); out != nil {
		t.Errorf("a response was answered: %x", out)
	}
	for n := headerSize; n < len(good); n++ {
		m := unpack(t, handle(good[:n]))
		if m.Rcode != mdns.RcodeFormatError || m.Id != uint16(good[0])<<8|uint16(good[1]) || !m.Response {
			t.Errorf("%d bytes: got\n%v", n, m)
		}
		wantEvent(t, b.events.last(t), policy.Deny, audit.ActionRefuse, name.ReasonBadRequest)
	}
	wantNothingAsked(t, b.zone)
}

func TestUnknownBoxAndNoPolicyAreDenied(t *testing.T) {
	t.Parallel()
	b := newBench(t, policy.Spec{Mode: policy.ModeAllowAll}, newZone(t))
	wire, _ := newQuery("example.com", mdns.TypeA).Pack()
	m := unpack(t, b.Handle(context.Background(), nil, policy.UDP, wire))
	if m.Rcode != mdns.RcodeRefused || len(m.Answer) > 0 {
		t.Errorf("got\n%v", m)
	}
	wantEvent(t, b.events.last(t), policy.Deny, audit.ActionRefuse, name.ReasonUnknownBox)

	b.box = &policy.Box{ID: "new"}
	wantBlocked(t, b.ask(t, "example.com", mdns.TypeA), sinkV4)
	wantEvent(t, b.events.last(t), policy.Deny, audit.ActionSink, name.ReasonNoPolicy)
	b.ask(t, `no\.name`, mdns.TypeA)
	wantEvent(t, b.events.last(t), policy.Deny, audit.ActionSink, name.ReasonNoPolicy)
	wantNothingAsked(t, b.zone)
}

func TestResolveMode(t *testing.T) {
	t.Parallel()
	spec := policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{goodV4 + "/32"}, DeniedDomains: []string{"denied.example"}, DNS: policy.DNSResolve}
	z := newZone(t,
		"in.example. 60 IN A "+goodV4, "mixed.example. 60 IN A "+goodV4b, "mixed.example. 60 IN A "+goodV4,
		"out.example. 60 IN A "+goodV4b, "denied.example. 60 IN A "+goodV4, "in.example. 60 IN TXT secret", "v6.example. 60 IN AAAA "+goodV6)
	b := newBench(t, spec, z)
	wantAddresses(t, b.ask(t, "in.example", mdns.TypeA), goodV4)
	wantEvent(t, b.events.last(t), policy.Allow, audit.ActionForward, name.ReasonAllowedCIDR)
	wantAddresses(t, b.ask(t, "mixed.example", mdns.TypeA), goodV4)
	wantBlocked(t, b.ask(t, "out.example", mdns.TypeA))
	wantEvent(t, b.events.last(t), policy.Deny, audit.ActionRefuse, name.ReasonNotAllowed)
	wantBlocked(t, b.ask(t, "v6.example", mdns.TypeAAAA))
	asked := len(z.questions())
	wantBlocked(t, b.ask(t, "denied.example", mdns.TypeA), sinkV4)
	wantBlocked(t, b.ask(t, "in.example", mdns.TypeTXT))
	if len(z.questions()) != asked {
		t.Errorf("upstream was asked %q", z.questions()[asked:])
	}
	if b.ask(t, "none.example", mdns.TypeA).Rcode != mdns.RcodeNameError {
		t.Error("a name that does not exist does")
	}
}

func TestPolicyThatTightensWhileUpstreamIsAsked(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("a.example.com"), newZone(t, "a.example.com. 60 IN A "+goodV4))
	b.zone.before = func() { b.box.Policy.Store(compile(t, domains("b.example.com"), 2)) }
	wantBlocked(t, b.ask(t, "a.example.com", mdns.TypeA), sinkV4)
	if ev := b.events.last(t); ev.Version != 2 || ev.Verdict != policy.Deny {
		t.Errorf("event = %+v", ev)
	}
	if b.Granted("box1", mustName(t, "a.example.com"), addr(goodV4)) {
		t.Error("the address was granted")
	}
	if n := len(b.events.all()); n != 1 {
		t.Errorf("%d events for one query", n)
	}
}

func TestOtherTypesPassWithoutAddresses(t *testing.T) {
	t.Parallel()
	z := newZone(t, "example.com. 60 IN MX 10 mail.example.com.", `example.com. 60 IN TXT "v=spf1"`, "example.com. 60 IN A 10.0.0.1")
	b := newBench(t, domains("example.com"), z)
	m := b.ask(t, "example.com", mdns.TypeMX)
	if len(m.Answer) != 1 || m.Answer[0].(*mdns.MX).Mx != "mail.example.com." {
		t.Errorf("got\n%v", m)
	}
	wantEvent(t, b.events.last(t), policy.Allow, audit.ActionForward, name.ReasonAllowedDomain)
	wantAddresses(t, b.ask(t, "example.com", mdns.TypeTXT))

	// An upstream that adds records that were not requested.
	b.cache.upstream = exchangeFunc(func(name string, qtype uint16) (*mdns.Msg, error) {
		m := new(mdns.Msg).SetQuestion(name, qtype)
		m.Answer = []mdns.RR{mustRR("example.com. 60 IN NS ns.example.com."), mustRR("example.com. 60 IN A 10.0.0.1"), mustRR("other.com. 60 IN NS 1.1.1.1.")}
		m.Ns = []mdns.RR{mustRR("example.com. 60 IN A 10.0.0.1")}
		m.Extra = []mdns.RR{mustRR("ns.example.com. 60 IN A 10.0.0.1"), mustRR("ns.example.com. 60 IN AAAA ::1")}
		return m, nil
	})
	m = b.ask(t, "example.com", mdns.TypeNS)
	if len(m.Answer) != 1 || len(m.Ns) != 0 || len(m.Extra) != 1 {
		t.Errorf("got\n%v", m)
	}
}

func TestNegativeAnswersPass(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("*.example.com"), newZone(t, "a.example.com. 60 IN A "+goodV4))
	m := b.ask(t, "none.example.com", mdns.TypeA)
	if m.Rcode != mdns.RcodeNameError || len(m.Ns) != 1 || m.Ns[0].Header().Ttl != 60 {
		t.Errorf("got\n%v", m)
	}
	wantEvent(t, b.events.last(t), policy.Allow, audit.ActionForward, name.ReasonAllowedDomain)
	wantRCode(t, b, "NXDOMAIN")
	b.ask(t, "none.example.com", mdns.TypeA)
	wantRCode(t, b, "NXDOMAIN") // from the cache
	if m = b.ask(t, "a.example.com", mdns.TypeAAAA); m.Rcode != mdns.RcodeSuccess || len(m.Answer) > 0 || len(m.Ns) != 1 || ede(m) != -1 {
		t.Errorf("got\n%v", m)
	}
	wantRCode(t, b, "") // the name exists
}

// wantRCode compares the code in the last event, and whether its line shows the name as allowed.
func wantRCode(t *testing.T, b *bench, want string) {
	t.Helper()
	e := b.events.last(t)
	if e.RCode != want || strings.Contains(audit.Line(e), "  allow  ") != (want == "") || strings.HasPrefix(audit.Summary(e), "allow") != (want == "") {
		t.Errorf("rcode %q, want %q: %s; %s", e.RCode, want, audit.Line(e), audit.Summary(e))
	}
}

func TestUpstreamDown(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("example.com"), newZone(t))
	b.zone.fail(errDown)
	m := b.ask(t, "example.com", mdns.TypeA)
	if m.Rcode != mdns.RcodeServerFailure || ede(m) != int(mdns.ExtendedErrorCodeNetworkError) || len(m.Answer) > 0 {
		t.Errorf("got\n%v", m)
	}
	ev := b.events.last(t)
	wantEvent(t, ev, policy.Deny, audit.ActionRefuse, name.ReasonUnresolved)
	if ev.Error == "" {
		t.Error("the event does not say what failed")
	}
}

func TestPanicAnswersServfailAndIsRecorded(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("example.com"), newZone(t))
	b.cache.answers = nil // causes a panic in the gateway
	if m := b.ask(t, "example.com", mdns.TypeA); m.Rcode != mdns.RcodeServerFailure {
		t.Errorf("got\n%v", m)
	}
	wantEvent(t, b.events.last(t), policy.Deny, audit.ActionRefuse, name.ReasonInternal)

	b = newBench(t, domains("example.com"), newZone(t))
	b.zone.before = func() { panic("upstream") }
	if m := b.ask(t, "example.com", mdns.TypeA); m.Rcode != mdns.RcodeServerFailure {
		t.Errorf("got\n%v", m)
	}
}

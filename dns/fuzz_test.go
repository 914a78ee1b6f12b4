package dns

import (
	"context"
	"errors"
	"slices"
	"testing"

	mdns "github.com/miekg/dns"

	"boxgate/policy"
)

// FuzzHandle sends any bytes as a query, and answers it with any bytes from upstream. In all cases the reply answers
// that query, has no address that the policy denies except the sink's, and one decision is recorded.
func FuzzHandle(f *testing.F) {
	seed := func(q, r *mdns.Msg) {
		a, _ := q.Pack()
		b, _ := r.Pack()
		f.Add(uint8(0), a, b)
		f.Add(uint8(1), a, b)
	}
	for _, line := range []string{"a.example.com. 60 IN A 127.0.0.1", "a.example.com. 60 IN AAAA ::ffff:10.0.0.1", "a.example.com. 60 IN A 93.184.216.34",
		"a.example.com. 60 IN CNAME a.example.com.", `a.example.com. 60 IN HTTPS 1 . alpn="h3,h2" ipv4hint="127.0.0.1" ech="AEX+DQ=="`, "b.evil.org. 60 IN TXT x"} {
		rr := mustRR(line)
		q := newQuery(rr.Header().Name, rr.Header().Rrtype)
		m := new(mdns.Msg).SetReply(q)
		m.Answer = []mdns.RR{rr}
		seed(q, m)
		q.Question[0].Qtype = mdns.TypeA
		seed(q, m)
	}
	f.Add(uint8(2), []byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"), []byte{})
	specs := []policy.Spec{
		{Mode: policy.ModeAllowAll},
		{Mode: policy.ModeCustom, AllowedDomains: []string{"*.example.com"}, DeniedDomains: []string{"*.evil.org"}, DeniedCIDRs: []string{"93.184.216.0/25"}},
		{Mode: policy.ModeCustom, AllowedCIDRs: []string{"93.184.216.0/24"}, DNS: policy.DNSResolve},
		{Mode: policy.ModeDenyAll},
	}
	f.Fuzz(func(t *testing.T, which uint8, wire, upstream []byte) {
		b := newBench(t, specs[int(which)%len(specs)], newZone(t))
		b.cache.upstream = exchangeFunc(func(string, uint16) (*mdns.Msg, error) {
			m := new(mdns.Msg)
			if m.Unpack(upstream) != nil {
				return nil, errors.New("malformed")
			}
			return m, nil
		})
		query := slices.Clone(wire)
		for _, transport := range []policy.Protocol{policy.UDP, policy.TCP} {
			checkReply(t, b, query, b.Handle(context.Background(), b.box, transport, wire))
		}
		if !slices.Equal(query, wire) {
			t.Error("the query was written to")
		}
		if n := len(b.events.all()); n != 2 {
			t.Errorf("%d events for two queries", n)
		}
	})
}

func checkReply(t *testing.T, b *bench, query, out []byte) {
	if len(query) < headerSize || query[2]&0x80 != 0 {
		if out != nil {
			t.Errorf("%x was answered with %x", query, out)
		}
		return
	}
	m := unpack(t, out)
	if out[0] != query[0] || out[1] != query[1] || !m.Response || m.Opcode != int(query[2]>>3)&0xf {
		t.Errorf("%x is not a reply to %x", out, query)
	}
	for _, a := range addresses(m) {
		asked, _ := parseName(m.Question[0].Name)
		d := b.box.Policy.Load().Decide(policy.Request{Stage: policy.StageDNS, Box: b.box.ID, Name: asked, Addr: addr(a)})
		if !d.Allowed() && (a != sinkV4 && a != sinkV6 || len(m.Answer) != 1) {
			t.Errorf("%s was answered, which the policy denies: %+v\n%v", a, d, m)
		}
	}
	for _, rr := range m.Answer {
		https, ok := rr.(*mdns.HTTPS)
		if ok && slices.ContainsFunc(https.Value, func(p mdns.SVCBKeyValue) bool { return slices.Contains(detours, p.Key()) }) {
			t.Errorf("a parameter that leads around the gateway passed: %v", rr)
		}
	}
}

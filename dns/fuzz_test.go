package dns

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
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

// directSpecs are policies that differ in a name and in an address. The zero one stands for no policy: it was removed
// after the cache was filled.
var directSpecs = []policy.Spec{
	{},
	{Mode: policy.ModeAllowAll},
	{Mode: policy.ModeCustom, AllowedDomains: []string{"*.example.com"}, DeniedDomains: []string{"*.evil.org"}, DeniedCIDRs: []string{"93.184.216.0/25"}},
	{Mode: policy.ModeCustom, AllowedCIDRs: []string{"93.184.216.0/24"}, DNS: policy.DNSResolve},
	{Mode: policy.ModeDenyAll},
	{Mode: policy.ModeDenyAll, DeniedNames: policy.DeniedRefused},
	{Mode: policy.ModeCustom, AllowedDomains: []string{"a.example.com"}, DeniedNames: policy.DeniedNXDOMAIN},
	{Mode: policy.ModeCustom, AllowedDomains: []string{"a.example.com"}, DeniedNames: policy.DeniedSink},
	{Mode: policy.ModeCustom, DeniedDomains: []string{"*.evil.org"}},
	{Mode: policy.ModeCustom, Precedence: policy.PrecedenceSpecific, AllowedDomains: []string{"*", "b.cdn.net"}, DeniedDomains: []string{"*.cdn.net", "*.org"},
		AllowedCIDRs: []string{"93.184.216.34"}, DeniedCIDRs: []string{"93.184.216.0/24"}},
	{Mode: policy.ModeCustom, AllowedDomains: []string{"*", "*.cdn.net:8443"}, DeniedCIDRs: []string{"2606:2800::/32"}},
}

// outcome has all effects and results of a query.
type outcome struct {
	reply  []byte
	events []audit.Event
	grants []Grant
	asked  int
	usage  [3]int64
}

func outcomeOf(b *bench, reply []byte) outcome {
	use := b.usages.usageOf(b.box)
	o := outcome{reply: reply, events: b.events.all(), asked: len(b.zone.questions()),
		usage: [3]int64{use.inFlight.Load(), use.lookups.Load(), use.memory.InUse()}}
	b.grants.mu.Lock()
	defer b.grants.mu.Unlock()
	if known := b.grants.boxes[b.box.ID]; known != nil {
		for e := known.order.Front(); e != nil; e = e.Next() {
			o.grants = append(o.grants, e.Value.(*heldGrant).Grant)
		}
	}
	return o
}

// compareDirect sends the same query to two servers with the same cache, to one of them directly, and reports whether
// that one answered. Time does not advance in the bubble, so events and grants are the same to the nanosecond.
func compareDirect(t *testing.T, spec policy.Spec, z func(*testing.T) *zone, transport policy.Protocol, wire, first []byte, age time.Duration) (direct bool) {
	closed := spec.Mode == ""
	if closed {
		spec.Mode = policy.ModeAllowAll
	}
	synctest.Test(t, func(t *testing.T) {
		var servers [2]*bench
		for i := range servers {
			servers[i] = newBench(t, spec, z(t))
			servers[i].box.Search = []name.Name{mustName(t, "evil.org"), mustName(t, "example.com")}
			servers[i].cache.upstream = exchangeFunc(func(name string, qtype uint16) (*mdns.Msg, error) {
				return servers[i].zone.exchange(context.Background(), name, qtype)
			})
			v := servers[i].usages.admit(servers[i].box, time.Now())
			servers[i].answer(t.Context(), v, transport, first)
			v.release()
			if closed {
				servers[i].box.Policy.Store(nil)
			}
		}
		time.Sleep(age)
		fast, slow := servers[0], servers[1]
		before := outcomeOf(fast, nil)
		query := slices.Clone(wire)
		v := fast.usages.admit(fast.box, time.Now())
		reply, ok := fast.answerDirectly(t.Context(), v, transport, wire, new(scratch), []byte("before"))
		v.release()
		if !slices.Equal(query, wire) {
			t.Error("the query was written to")
		}
		if !ok {
			if after := outcomeOf(fast, nil); !reflect.DeepEqual(before, after) {
				t.Errorf("%x was declined, but\n%+v\nbecame\n%+v", wire, before, after)
			}
			return
		}
		direct = true
		rest, found := strings.CutPrefix(string(reply), "before")
		if !found {
			t.Errorf("the answer %x was not appended", reply)
		}
		v = slow.usages.admit(slow.box, time.Now())
		want := outcomeOf(slow, slow.answer(t.Context(), v, transport, wire))
		v.release()
		want.usage = outcomeOf(slow, nil).usage
		if got := outcomeOf(fast, []byte(rest)); !reflect.DeepEqual(got, want) {
			t.Errorf("%x over %s, %v after %x:\ndirectly %+v\n   want %+v\n%v\n%v", wire, transport, age, first, got, want, unpack(t, got.reply), unpack(t, want.reply))
		}
	})
	return direct
}

// FuzzDirect checks, for any query, upstream answer and age, that a direct answer equals the general one byte for byte,
// with the same grants and event, or that the query is left to the general path without side effects.
func FuzzDirect(f *testing.F) {
	for i, line := range []string{"a.example.com. 60 IN A 127.0.0.1", "a.example.com. 60 IN AAAA ::ffff:10.0.0.1", "a.example.com. 60 IN A 93.184.216.34",
		"a.example.com. 60 IN CNAME b.cdn.net.", `a.example.com. 60 IN HTTPS 1 . alpn="h3,h2" ipv4hint="127.0.0.1" ech="AEX+DQ=="`, "b.evil.org. 60 IN TXT x"} {
		rr := mustRR(line)
		for _, asked := range []string{rr.Header().Name, strings.ToUpper(rr.Header().Name)} {
			q := newQuery(asked, rr.Header().Rrtype)
			m := new(mdns.Msg).SetReply(q)
			m.Answer = []mdns.RR{rr}
			a, _ := q.Pack()
			b, _ := m.Pack()
			f.Add(uint8(i), uint16(i), false, a, b)
			q.Extra = nil
			a, _ = q.Pack()
			f.Add(uint8(i+1), uint16(3*i), true, a, b)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, age uint16, tcp bool, wire, upstream []byte) {
		m := new(mdns.Msg)
		err := m.Unpack(upstream)
		if m.Rcode != mdns.RcodeSuccess && m.Rcode != mdns.RcodeNameError { // errors in upstream.go
			err = errors.New("upstream cannot answer")
		}
		z := func(t *testing.T) *zone { return &zone{fixed: m, err: err} }
		transport := policy.UDP
		if tcp {
			transport = policy.TCP
		}
		compareDirect(t, directSpecs[int(which)%len(directSpecs)], z, transport, wire, wire, time.Duration(age)*time.Second)
	})
}

// TestDirectAnswersAreTheSame checks the same for typical queries, over a zone with answers of every kind, and that
// most of them are answered directly.
func TestDirectAnswersAreTheSame(t *testing.T) {
	t.Parallel()
	lines := []string{
		"a.example.com. 300 IN A " + goodV4, "b.example.com. 300 IN A " + goodV4b, "b.example.com. 20 IN A 8.8.8.8", "b.example.com. 300 IN AAAA " + goodV6,
		"c.example.com. 60 IN CNAME x.cdn.net.", "x.cdn.net. 30 IN CNAME y.cdn.net.", "y.cdn.net. 600 IN A 1.1.1.1", "y.cdn.net. 600 IN AAAA 2001:4860::1",
		"d.example.com. 60 IN CNAME x.evil.org.", "x.evil.org. 60 IN A 8.8.4.4", "p.example.com. 60 IN A 10.0.0.1", "l.example.com. 60 IN CNAME l.example.com.",
		"t.example.com. 60 IN TXT \"some text\"", "m.example.com. 60 IN MX 10 mail.example.com.", "a.example.com. 60 IN HTTPS 1 . alpn=h2",
		"sub.a.example.com. 5 IN CNAME a.example.com.", "xn--bcher-kva.example.com. 60 IN A 1.0.0.1", "z.example.com. 0 IN A 1.2.3.4",
	}
	for i := range 100 {
		lines = append(lines, fmt.Sprintf("big.example.com. 60 IN A 1.1.2.%d", i))
		if i < 30 {
			lines = append(lines, fmt.Sprintf("mid.example.com. 60 IN A 1.1.3.%d", i))
		}
	}
	hosts := []string{"a.example.com.", "b.example.com.", "c.example.com.", "d.example.com.", "p.example.com.", "l.example.com.", "t.example.com.",
		"m.example.com.", "sub.a.example.com.", "xn--bcher-kva.example.com.", "z.example.com.", "big.example.com.", "mid.example.com.", "none.example.com.",
		"evil.org.", "x.evil.org.", "other.test.", "_x._tcp.example.com.", "1.2.3.4.", "xn--a.example.com.", "com.", strings.Repeat("y123456789.", 22) + "example.com."}
	qtypes := []uint16{mdns.TypeA, mdns.TypeAAAA, mdns.TypeA, mdns.TypeTXT, mdns.TypeMX, mdns.TypeHTTPS, mdns.TypeCNAME, mdns.TypeSOA, mdns.TypeANY, 65280}
	random := rand.New(rand.NewPCG(1, 2))
	direct, all := 0, 3000
	for range all {
		full := random.IntN(2) == 0
		z := func(t *testing.T) *zone {
			z := newZone(t, lines...)
			z.full = full
			return z
		}
		q := new(mdns.Msg).SetQuestion(hosts[random.IntN(len(hosts))], qtypes[random.IntN(len(qtypes))])
		first, _ := q.Pack()
		q.RecursionDesired, q.CheckingDisabled, q.AuthenticatedData = random.IntN(4) > 0, random.IntN(4) == 0, random.IntN(4) == 0
		if random.IntN(3) > 0 {
			q.SetEdns0([]uint16{0, 512, 600, 1232, 4096}[random.IntN(5)], random.IntN(2) == 0)
		}
		if random.IntN(3) == 0 {
			q.Question[0].Name = mixCase(q.Question[0].Name)
		}
		wire, _ := q.Pack()
		if random.IntN(20) == 0 {
			wire[random.IntN(len(wire))] ^= 1 << random.IntN(8)
		}
		transport := []policy.Protocol{policy.UDP, policy.TCP}[random.IntN(2)]
		age := []time.Duration{0, 500 * time.Millisecond, 10 * time.Second, 59999 * time.Millisecond, time.Hour}[random.IntN(5)]
		if compareDirect(t, directSpecs[random.IntN(len(directSpecs))], z, transport, wire, first, age) {
			direct++
		}
	}
	if direct < all/3 {
		t.Errorf("%d of %d queries were answered directly", direct, all)
	}
}

// FuzzPlain checks that the DNS library parses everything that parsePlain accepts, with the same result.
func FuzzPlain(f *testing.F) {
	for _, host := range []string{"a.example.com", "A.Example.COM", "_x._tcp.example.com", "1.2.3.4"} {
		wire, _ := newQuery(host, mdns.TypeA).Pack()
		f.Add(wire)
		wire, _ = new(mdns.Msg).SetQuestion(host+".", mdns.TypeHTTPS).Pack()
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var buf [maxName]byte
		got, ok := parsePlain(wire, buf[:])
		if !ok {
			return
		}
		want, bad := parseQuery(wire)
		if bad != nil || string(got.name)+"." != strings.ToLower(want.name) || got.mixedCase != (want.name != strings.ToLower(want.name)) ||
			got.qtype != want.qtype || got.edns != (want.opt != nil) || got.edns && got.do != want.opt.Do() || got.limit != want.maxSize(policy.UDP) {
			t.Errorf("%x is %+v, want %+v, %v", wire, got, want, bad)
		}
	})
}

// TestDirectAnswerIsGrantedBeforeItIsRecorded checks that all addresses are granted before the event is recorded.
func TestDirectAnswerIsGrantedBeforeItIsRecorded(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("a.example.com"), newZone(t, "a.example.com. 30 IN A "+goodV4, "a.example.com. 30 IN A "+goodV4b))
	b.ask(t, "a.example.com", mdns.TypeA)
	b.grants.forget("box1")
	b.audit = recorderFunc(func() {
		for _, a := range []string{goodV4, goodV4b} {
			if !b.Granted("box1", mustName(t, "a.example.com"), netip.MustParseAddr(a)) {
				t.Errorf("the decision was recorded without the grant of %s", a)
			}
		}
	})
	wire, _ := newQuery("a.example.com", mdns.TypeA).Pack()
	v := b.usages.admit(b.box, time.Now())
	defer v.release()
	if _, ok := b.answerDirectly(t.Context(), v, policy.UDP, wire, new(scratch), nil); !ok {
		t.Error("the query was declined")
	}
}

// TestPanicInADirectAnswer checks that a panic ends only that query, with SERVFAIL and an event.
func TestPanicInADirectAnswer(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("a.example.com"), newZone(t, "a.example.com. 30 IN A "+goodV4))
	b.ask(t, "a.example.com", mdns.TypeA)
	grants := b.grants
	b.grants = nil
	if m := b.ask(t, "a.example.com", mdns.TypeA); m.Rcode != mdns.RcodeServerFailure {
		t.Errorf("got\n%v", m)
	}
	wantEvent(t, b.events.last(t), policy.Deny, audit.ActionRefuse, name.ReasonInternal)
	b.grants = grants
	wantAddresses(t, b.ask(t, "a.example.com", mdns.TypeA), goodV4)
}

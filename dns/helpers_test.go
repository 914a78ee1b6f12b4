package dns

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	mdns "github.com/miekg/dns"
	"go.uber.org/zap/zaptest"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Addresses in the tests. The public ones are global unicast; no packet is sent to them.
const (
	goodV4  = "93.184.216.34"
	goodV4b = "93.184.216.35"
	goodV6  = "2606:2800:220:1::1"
	sinkV4  = "10.200.0.2"
	sinkV6  = "fd00:200::2"
)

// events collects recorded events.
type events struct {
	mu   sync.Mutex
	list []audit.Event
}

func (e *events) Record(ev audit.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, ev)
}

func (e *events) all() []audit.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.list)
}

// last returns the event recorded last.
func (e *events) last(t testing.TB) audit.Event {
	t.Helper()
	all := e.all()
	if len(all) == 0 {
		t.Fatal("no audit event was recorded")
	}
	return all[len(all)-1]
}

// zone is an upstream that knows the records of a zone file and remembers its questions. It answers only with the CNAME
// record of a chain, so that the asker follows it, unless full is set.
type zone struct {
	mu      sync.Mutex
	records []mdns.RR
	full    bool
	fixed   *mdns.Msg // the answer to every question, if set
	asked   []string
	err     error
	before  func() // called before each answer, without mu
}

func newZone(t testing.TB, lines ...string) *zone {
	t.Helper()
	z := &zone{}
	z.set(t, lines...)
	return z
}

func (z *zone) set(t testing.TB, lines ...string) {
	t.Helper()
	var rrs []mdns.RR
	for _, l := range lines {
		rr, err := mdns.NewRR(l)
		if err != nil {
			t.Fatal(err)
		}
		rrs = append(rrs, rr)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.records = rrs
}

// fail makes every later question fail with err; nil ends that.
func (z *zone) fail(err error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.err = err
}

func (z *zone) questions() []string {
	z.mu.Lock()
	defer z.mu.Unlock()
	return slices.Clone(z.asked)
}

func (z *zone) exchange(_ context.Context, name string, qtype uint16) (*mdns.Msg, error) {
	if z.before != nil {
		z.before()
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked = append(z.asked, strings.ToLower(name)+" "+mdns.TypeToString[qtype])
	if z.err != nil {
		return nil, z.err
	}
	if z.fixed != nil {
		return z.fixed.Copy(), nil
	}
	return z.answerLocked(name, qtype), nil
}

func (z *zone) answerLocked(name string, qtype uint16) *mdns.Msg {
	m := new(mdns.Msg)
	m.SetQuestion(name, qtype)
	m.Response = true
	exists := false
	for owner, hops := mdns.CanonicalName(name), 0; owner != "" && hops < 100; hops++ {
		next := ""
		for _, rr := range z.records {
			if mdns.CanonicalName(rr.Header().Name) != owner {
				continue
			}
			exists = true
			c, isAlias := rr.(*mdns.CNAME)
			if rr.Header().Rrtype == qtype || isAlias {
				m.Answer = append(m.Answer, mdns.Copy(rr))
			}
			if isAlias && z.full && qtype != mdns.TypeCNAME {
				next = mdns.CanonicalName(c.Target)
			}
		}
		owner = next
	}
	if len(m.Answer) == 0 {
		m.Ns = []mdns.RR{mustRR("example.com. 300 IN SOA ns.example.com. root.example.com. 1 2 3 4 60")}
		if !exists {
			m.Rcode = mdns.RcodeNameError
		}
	}
	return m
}

func mustRR(line string) mdns.RR {
	rr, err := mdns.NewRR(line)
	if err != nil {
		panic(err)
	}
	return rr
}

// bench is a server with one box, its upstream and its recorded events.
type bench struct {
	*Server
	box    *policy.Box
	zone   *zone
	events *events
}

// newBench makes a server whose only box, at 127.0.0.1 and ::1, has the given policy. No socket is opened.
func newBench(t testing.TB, spec policy.Spec, z *zone, limits ...Limits) *bench {
	t.Helper()
	b := &bench{box: newBox(t, "box1", spec), zone: z, events: &events{}}
	b.Server = newServer(testConfig(t, b.box, b.events, limits...), z)
	return b
}

type oneBox struct{ box *policy.Box }

func (o oneBox) BoxByAddr(a netip.Addr) *policy.Box {
	if a == o.box.V4 || a == o.box.V6 {
		return o.box
	}
	return nil
}

func testConfig(t testing.TB, box *policy.Box, rec Recorder, limits ...Limits) Config {
	c := Config{
		Boxes:  oneBox{box},
		SinkV4: netip.MustParseAddr(sinkV4), SinkV6: netip.MustParseAddr(sinkV6),
		Audit: rec,
		Log:   zaptest.NewLogger(t),
	}
	if len(limits) > 0 {
		c.Limits = limits[0]
	}
	return c
}

func newBox(t testing.TB, id policy.BoxID, spec policy.Spec) *policy.Box {
	t.Helper()
	box := &policy.Box{ID: id, V4: netip.MustParseAddr("127.0.0.1"), V6: netip.MustParseAddr("::1")}
	box.Policy.Store(compile(t, spec, 1))
	return box
}

func compile(t testing.TB, spec policy.Spec, version uint64) *policy.Compiled {
	t.Helper()
	c, err := policy.Compile(spec, policy.Options{Version: version, Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func domains(allowed ...string) policy.Spec {
	return policy.Spec{Mode: policy.ModeCustom, AllowedDomains: allowed}
}

func mustName(t testing.TB, s string) name.Name {
	t.Helper()
	n, err := name.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// newQuery returns a query as a stub resolver sends it, with EDNS.
func newQuery(name string, qtype uint16) *mdns.Msg {
	return new(mdns.Msg).SetQuestion(mdns.Fqdn(name), qtype).SetEdns0(1232, false)
}

// ask sends one query of the box through Handle.
func (b *bench) ask(t testing.TB, name string, qtype uint16) *mdns.Msg {
	t.Helper()
	return b.exchange(t, newQuery(name, qtype), policy.UDP)
}

func (b *bench) exchange(t testing.TB, q *mdns.Msg, transport policy.Protocol) *mdns.Msg {
	t.Helper()
	wire, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return unpack(t, b.Handle(context.Background(), b.box, transport, wire))
}

func unpack(t testing.TB, wire []byte) *mdns.Msg {
	t.Helper()
	m := new(mdns.Msg)
	if err := m.Unpack(wire); err != nil {
		t.Fatalf("reply %x: %v", wire, err)
	}
	return m
}

// addresses returns the A and AAAA records of all sections, as text.
func addresses(m *mdns.Msg) []string {
	var out []string
	for _, rr := range slices.Concat(m.Answer, m.Ns, m.Extra) {
		if a := addrOf(rr); a.IsValid() {
			out = append(out, a.String())
		}
	}
	return out
}

// ede returns the info code of the extended error, or -1.
func ede(m *mdns.Msg) int {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*mdns.EDNS0_EDE); ok {
				return int(e.InfoCode)
			}
		}
	}
	return -1
}

func wantAddresses(t *testing.T, m *mdns.Msg, want ...string) {
	t.Helper()
	if got := addresses(m); !slices.Equal(got, want) {
		t.Errorf("addresses = %v, want %v\n%v", got, want, m)
	}
}

// wantBlocked checks for an empty answer, or the sink's address, that gives the policy as the reason.
func wantBlocked(t *testing.T, m *mdns.Msg, sink ...string) {
	t.Helper()
	wantAddresses(t, m, sink...)
	if m.Rcode != mdns.RcodeSuccess || ede(m) != int(mdns.ExtendedErrorCodeBlocked) || len(m.Answer) != len(sink) {
		t.Errorf("want NOERROR with extended error 15 and %d answers, got\n%v", len(sink), m)
	}
}

func wantEvent(t *testing.T, ev audit.Event, v policy.Verdict, action audit.Action, reason name.Reason) {
	t.Helper()
	if ev.Verdict != v || ev.Action != action || ev.Reason != reason || ev.Stage != policy.StageDNS {
		t.Errorf("event = %+v, want %v %v %v", ev, v, action, reason)
	}
}

func wantNothingAsked(t *testing.T, z *zone) {
	t.Helper()
	if asked := z.questions(); len(asked) > 0 {
		t.Errorf("upstream was asked %q", asked)
	}
}

var errDown = errors.New("network is unreachable")

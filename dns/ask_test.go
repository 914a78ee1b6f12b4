package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"boxgate/dns/outbound"
	"boxgate/internal/lru"
	"boxgate/policy"
)

// patient asks over UDP with a long timeout for busy machines.
func (l *live) patient(t *testing.T, name string, qtype uint16) *mdns.Msg {
	t.Helper()
	m, _, err := (&mdns.Client{Timeout: time.Minute}).Exchange(newQuery(name, qtype), l.addr)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestReaderAsksOnceForAllWaiting queries of a box, in any spelling of the name.
func TestReaderAsksOnceForAllWaiting(t *testing.T) {
	t.Parallel()
	z := newZone(t, "a.example.com. 60 IN A "+goodV4)
	asked, release := make(chan struct{}, 100), make(chan struct{})
	z.before = func() { asked <- struct{}{}; <-release }
	l := newLive(t, domains("a.example.com"), z)
	conn, err := net.Dial("udp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const queries = 20
	for i := range queries {
		q := newQuery([]string{"a.example.com", "A.Example.com"}[i%2], mdns.TypeA)
		q.Id = uint16(i)
		wire, _ := q.Pack()
		if _, err := conn.Write(wire); err != nil {
			t.Fatal(err)
		}
	}
	<-asked
	for l.usages.usageOf(l.box).inFlight.Load() < queries {
		time.Sleep(time.Millisecond)
	}
	close(release)
	ids := map[uint16]bool{}
	buf := make([]byte, udpSize)
	for range queries {
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		m := unpack(t, buf[:n])
		wantAddresses(t, m, goodV4)
		if want := []string{"a.example.com.", "A.Example.com."}[m.Id%2]; m.Question[0].Name != want || m.Answer[0].Header().Name != want {
			t.Errorf("asked for %s, got\n%v", want, m)
		}
		ids[m.Id] = true
	}
	if len(ids) != queries {
		t.Errorf("%d of %d queries were answered", len(ids), queries)
	}
	for l.usages.usageOf(l.box).lookups.Load() != 0 || l.usages.usageOf(l.box).inFlight.Load() != 0 {
		time.Sleep(time.Millisecond)
	}
	if n := len(l.cache.slots); n != 0 {
		t.Errorf("%d lookups are still counted", n)
	}
}

// TestPolicyTightenedWhileUpstreamIsAsked checks that the policy at the time of the answer decides.
func TestPolicyTightenedWhileUpstreamIsAsked(t *testing.T) {
	t.Parallel()
	z := newZone(t, "a.example.com. 60 IN A "+goodV4)
	asked, release := make(chan struct{}, 100), make(chan struct{})
	z.before = func() { asked <- struct{}{}; <-release }
	l := newLive(t, domains("a.example.com"), z)
	go func() {
		<-asked
		l.box.Policy.Store(compile(t, domains("b.example.com"), 2))
		close(release)
	}()
	wantBlocked(t, l.patient(t, "a.example.com", mdns.TypeA), sinkV4)
	if l.Granted("box1", mustName(t, "a.example.com"), addr(goodV4)) {
		t.Error("an address was granted")
	}
}

// TestReaderLeavesTheRestToTheGeneralWay covers answers that need several questions, or that the box may not receive.
func TestReaderLeavesTheRestToTheGeneralWay(t *testing.T) {
	t.Parallel()
	lines := []string{"c.example.com. 60 IN CNAME x.cdn.net.", "x.cdn.net. 60 IN A " + goodV4, "d.example.com. 60 IN CNAME x.evil.org.",
		"x.evil.org. 60 IN A " + goodV4, "r.example.com. 60 IN A 10.0.0.1", "m.example.com. 60 IN A 10.0.0.1", "m.example.com. 60 IN A " + goodV4,
		`h.example.com. 60 IN HTTPS 1 . alpn="h3,h2" ipv4hint="127.0.0.1" ech="AEX+DQ=="`}
	spec := domains("*.example.com")
	spec.DeniedDomains = []string{"*.evil.org"}
	l := newLive(t, spec, newZone(t, lines...))
	wantAddresses(t, l.patient(t, "c.example.com", mdns.TypeA), goodV4)
	wantBlocked(t, l.patient(t, "d.example.com", mdns.TypeA))
	wantBlocked(t, l.patient(t, "r.example.com", mdns.TypeA))
	wantAddresses(t, l.patient(t, "m.example.com", mdns.TypeA), goodV4)
	if m := l.patient(t, "none.example.com", mdns.TypeA); m.Rcode != mdns.RcodeNameError {
		t.Errorf("got\n%v", m)
	}
	if m := l.patient(t, "h.example.com", mdns.TypeHTTPS); len(m.Answer) != 1 || strings.Contains(m.Answer[0].String(), "hint") ||
		strings.Contains(m.Answer[0].String(), "ech") || strings.Contains(m.Answer[0].String(), "h3") {
		t.Errorf("got\n%v", m)
	}
}

// TestReaderFailsOver checks that the reader uses the next upstream, and skips the one that does not answer.
func TestReaderFailsOver(t *testing.T) {
	t.Parallel()
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	up := newRealUpstream(t, newZone(t, "a.example.com. 60 IN A "+goodV4, "b.example.com. 60 IN A "+goodV4), nil)
	l := newLiveBehind(t, domains("*.example.com"), up, []string{silent.LocalAddr().String()})
	wantAddresses(t, l.patient(t, "a.example.com", mdns.TypeA), goodV4)
	if l.up.upstreams[0].heldUntil.Load() == 0 {
		t.Error("the silent server is asked first again")
	}
	wantAddresses(t, l.patient(t, "b.example.com", mdns.TypeA), goodV4)
}

// TestReaderAndLookupAskOnce checks that the proxy's lookups wait for questions that a reader has already asked.
func TestReaderAndLookupAskOnce(t *testing.T) {
	t.Parallel()
	z := newZone(t, "a.example.com. 60 IN A "+goodV4, "a.example.com. 60 IN AAAA "+goodV6)
	asked, release := make(chan struct{}, 100), make(chan struct{})
	z.before = func() { asked <- struct{}{}; <-release }
	l := newLive(t, domains("a.example.com"), z)
	var wait sync.WaitGroup
	wait.Go(func() {
		if m, _, err := (&mdns.Client{Timeout: time.Minute}).Exchange(newQuery("a.example.com", mdns.TypeA), l.addr); err != nil || len(m.Answer) != 1 {
			t.Errorf("got %v, %v", m, err)
		}
	})
	<-asked
	wait.Go(func() {
		if got, err := l.LookupBoth(t.Context(), l.box, mustName(t, "a.example.com")); err != nil || fmt.Sprint(got) != fmt.Sprint([]string{goodV4, goodV6}) {
			t.Errorf("got %v, %v", got, err)
		}
	})
	<-asked // for AAAA
	close(release)
	wait.Wait()
	var types []uint16
	for _, q := range l.upstream.queries() {
		types = append(types, q.msg.Question[0].Qtype)
	}
	if !slices.Equal(types, []uint16{mdns.TypeA, mdns.TypeAAAA}) {
		t.Errorf("upstream was asked for %v", types)
	}
}

// TestDirectUpstream checks which upstreams are not asked from a reader's sockets.
func TestDirectUpstream(t *testing.T) {
	t.Parallel()
	for in, direct := range map[string]bool{"192.0.2.1": true, "[2001:db8::1]:54": true, "tls://192.0.2.1": false, "localhost": false, "fe80::1%lo": false} {
		if u, err := newUpstream(in, nil, nil); err != nil || u.directAddr.IsValid() != direct {
			t.Errorf("%s: %v, %v", in, u.directAddr, err)
		}
	}
	dialled := newTestForwarder(t, new(net.Dialer).DialContext, nil, "192.0.2.1")
	held := newTestForwarder(t, nil, nil, "192.0.2.1", "192.0.2.2")
	held.upstreams[0].markFailed(time.Now())
	if dialled.directUpstream() != nil || held.directUpstream() != held.upstreams[1] {
		t.Error("the upstream to ask is another")
	}
}

// networks returns the networks over which the upstream was asked, in order.
func (u *realUpstream) networks() []string {
	var out []string
	for _, q := range u.queries() {
		out = append(out, q.network)
	}
	return out
}

// TestReaderAsksOnceWhateverTheAnswer checks that waiting queries do not ask again for an answer that cannot be cached,
// or for a failure.
func TestReaderAsksOnceWhateverTheAnswer(t *testing.T) {
	t.Parallel()
	for what, tc := range map[string]struct {
		change func(m *mdns.Msg)
		rcode  int
	}{
		"a failure":                      {func(m *mdns.Msg) { m.Rcode = mdns.RcodeServerFailure }, mdns.RcodeServerFailure},
		"a refusal without the question": {func(m *mdns.Msg) { m.Rcode, m.Question = mdns.RcodeRefused, nil }, mdns.RcodeServerFailure},
		"no such name, without SOA":      {func(m *mdns.Msg) { m.Rcode, m.Ns = mdns.RcodeNameError, nil }, mdns.RcodeNameError},
		"no address, without SOA":        {func(m *mdns.Msg) { m.Rcode, m.Ns = mdns.RcodeSuccess, nil }, mdns.RcodeSuccess},
		"a chain that leads to no host": {func(m *mdns.Msg) {
			m.Rcode, m.Answer = 0, []mdns.RR{mustRR("a.example.com. 60 IN CNAME a\\.b.cdn.net.")}
		}, mdns.RcodeServerFailure},
		"no such name at the end of a chain": {func(m *mdns.Msg) { m.Ns, m.Answer = nil, []mdns.RR{mustRR("a.example.com. 60 IN CNAME x.cdn.net.")} }, mdns.RcodeNameError},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			up := newRealUpstream(t, newZone(t), func(_ string, m *mdns.Msg) { tc.change(m) })
			l := newLiveBehind(t, domains("a.example.com"), up, nil)
			if m := l.patient(t, "a.example.com", mdns.TypeA); m.Rcode != tc.rcode {
				t.Errorf("got\n%v", m)
			}
			if got := up.networks(); !slices.Equal(got, []string{"udp"}) {
				t.Errorf("upstream was asked over %v", got)
			}
		})
	}
}

// TestReaderAsksOnceResolvingOthers asks for a denied name that is resolved only to judge its addresses, but has no addresses.
func TestReaderAsksOnceResolvingOthers(t *testing.T) {
	t.Parallel()
	up := newRealUpstream(t, newZone(t), func(_ string, m *mdns.Msg) { m.Rcode, m.Ns = mdns.RcodeSuccess, nil })
	l := newLiveBehind(t, policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{"93.184.216.0/24"}}, up, nil)
	l.patient(t, "a.example.com", mdns.TypeA)
	if got := up.networks(); !slices.Equal(got, []string{"udp"}) {
		t.Errorf("upstream was asked over %v", got)
	}
}

// TestReaderLeavesSuspectAnswersToAStream checks that the reader does not ask over UDP again, which would give a forger
// another try.
func TestReaderLeavesSuspectAnswersToAStream(t *testing.T) {
	t.Parallel()
	const letters = "abcdefghijklmnopqrstuvwxyz.example.com" // its random case is never all lower
	for what, change := range map[string]func(m *mdns.Msg){
		"truncated":    func(m *mdns.Msg) { m.Truncated = true },
		"folded":       func(m *mdns.Msg) { m.Question[0].Name = strings.ToLower(m.Question[0].Name) },
		"another type": func(m *mdns.Msg) { m.Question[0].Qtype = mdns.TypeTXT },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			up := newRealUpstream(t, newZone(t, letters+". 60 IN A "+goodV4), func(network string, m *mdns.Msg) {
				if network == "udp" {
					m.Question = slices.Clone(m.Question)
					change(m)
				}
			})
			l := newLiveBehind(t, domains("*.example.com"), up, nil)
			wantAddresses(t, l.patient(t, letters, mdns.TypeA), goodV4)
			if got := up.networks(); !slices.Equal(got, []string{"udp", "tcp"}) {
				t.Errorf("upstream was asked over %v", got)
			}
			if l.up.upstreams[0].heldUntil.Load() != 0 {
				t.Error("a server that answers is held down")
			}
		})
	}
}

// TestReaderGoesOnAfterAFailure checks that the lookup continues with the other servers, without asking the failed one
// again.
func TestReaderGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	bad := newRealUpstream(t, newZone(t), nil)
	bad.zone.fail(errDown) // answers SERVFAIL
	good := newRealUpstream(t, newZone(t, "a.example.com. 60 IN A "+goodV4), nil)
	l := newLiveBehind(t, domains("a.example.com"), good, []string{bad.addr})
	wantAddresses(t, l.patient(t, "a.example.com", mdns.TypeA), goodV4)
	if n := len(bad.queries()); n != 1 {
		t.Errorf("the server that failed was asked %d times", n)
	}
}

// byHand is a reader that the test steps manually.
type byHand struct {
	*reader
	t   *testing.T
	box *policy.Box
}

func newByHand(t *testing.T, upstreams ...string) byHand {
	t.Helper()
	box := newBox(t, "box1", domains("*.example.com"))
	c := testConfig(t, box, &events{})
	c.Upstreams = upstreams
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	s.cache.timeout = time.Hour
	for _, u := range s.up.upstreams {
		u.timeout = time.Minute
	}
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sock, err := newSocket(pc)
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{Server: s, socket: sock, batch: newBatch(sock)}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		r.closeSockets(ctx)
		r.answering.Wait()
		if err := sock.close(); err != nil {
			t.Error(err)
		}
	})
	return byHand{r, t, box}
}

// query makes a query that arrives now wait for an answer from upstream.
func (r byHand) query(host string) {
	r.t.Helper()
	now := time.Now()
	wire, err := newQuery(host, mdns.TypeA).Pack()
	if err != nil {
		r.t.Fatal(err)
	}
	w := pendingQuery{visit: r.usages.admit(r.box, now), wire: wire, from: peer{from: netip.MustParseAddrPort("127.0.0.1:9")}, buf: new([maxQuery]byte)}
	if !r.askUpstream(w, cacheKey{mustName(r.t, host), mdns.TypeA}) {
		r.t.Fatalf("%s is not asked for", host)
	}
}

// TestOneSilentNameDoesNotHoldTheServer checks that a name whose authority never answers does not hold the preferred
// upstream down for all boxes while it answers other questions. A server that answers no question is held down.
func TestOneSilentNameDoesNotHoldTheServer(t *testing.T) {
	t.Parallel()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, &mdns.Server{PacketConn: pc, Handler: mdns.HandlerFunc(func(w mdns.ResponseWriter, q *mdns.Msg) {
		if asked := strings.ToLower(q.Question[0].Name); asked != "silent.example.com." {
			m := new(mdns.Msg).SetReply(q)
			m.Answer = []mdns.RR{mustRR(q.Question[0].Name + " 60 IN A " + goodV4)}
			w.WriteMsg(m)
		}
	})})
	other := newRealUpstream(t, newZone(t, "silent.example.com. 0 IN A "+goodV4b), nil)
	r := newByHand(t, pc.LocalAddr().String(), other.addr)
	preferred := r.up.upstreams[0]

	r.query("silent.example.com")
	r.query("a.example.com")
	for r.questions.sockets.Open() > 1 {
		if _, err := r.awaitAnswer(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r.expireQuestions(t.Context(), time.Now().Add(time.Minute))
	r.answering.Wait() // the other server has answered
	if preferred.heldUntil.Load() != 0 {
		t.Fatal("a server that answers is held down")
	}

	r.cache.answers = lru.New[cacheKey, *answer](1 << 20)
	r.query("silent.example.com")
	r.expireQuestions(t.Context(), time.Now().Add(2*time.Minute))
	r.answering.Wait()
	if preferred.heldUntil.Load() == 0 {
		t.Error("a server that answers nothing is asked first again")
	}
	if n := len(other.queries()); n != 2 {
		t.Errorf("the other server was asked %d times for two names", n)
	}
	preferred.markAnswered()
	if preferred.isHeldDown() {
		t.Error("a server that answers again stays held down")
	}
}

// TestHeldServerThatAnswersIsAskedAgain checks that an answer to a reader ends the hold.
func TestHeldServerThatAnswersIsAskedAgain(t *testing.T) {
	t.Parallel()
	up := newRealUpstream(t, newZone(t, "a.example.com. 60 IN A "+goodV4), nil)
	r := newByHand(t, up.addr)
	r.query("a.example.com")
	r.up.upstreams[0].markFailed(time.Now()) // another reader's question
	for r.questions.sockets.Open() > 0 {
		if _, err := r.awaitAnswer(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if r.up.upstreams[0].heldUntil.Load() != 0 {
		t.Error("a server that answers is held down")
	}
}

// TestReaderWithoutDescriptorsSaysSoOnceASecond checks that the reader also tries no more often.
func TestReaderWithoutDescriptorsSaysSoOnceASecond(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.WarnLevel)
	r := newByHand(t, "127.0.0.1:9")
	r.log = zap.New(core)
	fd := r.socket.fd
	r.socket.fd = -1 // makes waiting fail
	start := time.Now()
	for i := range 250 {
		if r.openSockets(start.Add(time.Duration(i) * 10 * time.Millisecond)) {
			t.Fatal("prepared")
		}
	}
	if n := logs.Len(); n != 3 {
		t.Errorf("%d warnings in two and a half seconds", n)
	}
	r.socket.fd = fd
	if !r.openSockets(start.Add(time.Hour)) {
		t.Error("it does not recover")
	}
}

// TestReadersShareTheirSockets checks that questions beyond the shared budget take the general path, and that sockets
// which one reader closes are available to the others.
func TestReadersShareTheirSockets(t *testing.T) {
	t.Parallel()
	one, other := newByHand(t, "127.0.0.1:9"), newByHand(t, "127.0.0.1:9")
	one.budget = outbound.NewBudget(1)
	other.Server = one.Server
	one.query("a.example.com")
	w := pendingQuery{visit: one.usages.admit(one.box, time.Now())}
	missing := cacheKey{mustName(t, "b.example.com"), mdns.TypeA}
	if other.askUpstream(w, missing) {
		t.Error("the other reader has a socket beyond the budget")
	}
	w.visit.release()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	one.closeSockets(ctx)
	other.query("b.example.com")
}

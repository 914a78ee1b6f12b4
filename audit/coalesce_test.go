package audit

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/audit/lines"
	"boxgate/policy"
	"boxgate/policy/name"
)

// The gateway's answers to strangers are reported once a second with their count, but requests with a credential each
// time.
func TestAnswersToStrangersAreToldOnceASecondWithTheirNumber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		answer := func(label string, c Credential) {
			l.Record(Event{Box: "b", Stage: policy.StageURL, Name: label, Action: ActionAnswer, Verdict: policy.Allow, Reason: name.ReasonURL, Credential: c, Status: 200})
		}
		for range 100 {
			answer("page", CredentialNone)
		}
		time.Sleep(time.Millisecond) // events at the same instant have no order
		for range 100 {
			answer("redirect", "")
		}
		for range 3 {
			answer("sign-in", CredentialBearer)
		}
		l.Flush()
		synctest.Wait()
		if got := emitted(l); got != "page×1 redirect×1 sign-in×1 sign-in×1 sign-in×1 page×99 redirect×99" {
			t.Errorf("emitted %s", got)
		}
		for i := range 1000 {
			answer(fmt.Sprint(i), CredentialNone)
		}
		l.Flush()
		synctest.Wait()
		events := l.Recent(Filter{})
		last := events[len(events)-1]
		if last.Verdict != policy.Allow || last.Name != "" || last.Count == 0 || last.Error != "requests of other kinds, reported by count" {
			t.Errorf("beyond what is told apart: %+v", last)
		}
	})
}

// TestAttackEventsOfOneBoxHoldUpOthers checks that a box which causes events as fast as it can, all emitted at the end
// of an interval, does not delay events of another box.
func TestAttackEventsOfOneBoxHoldUpOthers(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	c := coalescer{boxes: map[policy.BoxID]*coalesced{}, emit: func(*Event) {
		begun <- struct{}{}
		<-goOn
	}}
	refusal := func(box policy.BoxID) *Event { e := denial("evil.example.com"); e.Box = box; return &e }
	if !c.admit(refusal("a")) || c.admit(refusal("a")) {
		t.Fatal("the first event is not emitted at once, or the second is")
	}
	go c.flush("a")
	<-begun
	other := make(chan struct{})
	go func() {
		defer close(other)
		if !c.admit(refusal("b")) {
			t.Error("the first event of another box is not emitted at once")
		}
	}()
	select {
	case <-other:
	case <-time.After(time.Minute):
		t.Error("a box waits while the events of another one are emitted")
	}
	close(goOn)
	c.flushAll()
}

// denial is a refusal of one box.
func denial(label string) Event {
	return Event{Box: "b", Stage: policy.StageConn, Name: label, Port: 443, Action: ActionRefuse, Reason: name.ReasonNotAllowed}
}

// emitted returns the remembered events, as name×count.
func emitted(l *Log) string {
	var out []string
	for _, e := range l.Recent(Filter{}) {
		out = append(out, fmt.Sprintf("%s×%d", e.Name, max(e.Count, 1)))
	}
	return strings.Join(out, " ")
}

func TestRepeatedRefusalsAreToldOnceASecondWithTheirNumber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		want := func(s string) {
			t.Helper()
			synctest.Wait()
			if got := emitted(l); got != s {
				t.Fatalf("emitted %s, want %s", got, s)
			}
		}
		for range 500 {
			l.Record(denial("a"))
		}
		l.Record(denial("b"))
		want("a×1 b×1") // the first of each immediately
		if got := metric(t, l, "boxgate_decisions_total", "action=refuse,reason=not_allowed,stage=conn,verdict=deny"); got != 501 {
			t.Errorf("the metrics have %v of 501", got)
		}
		time.Sleep(coalesceInterval)
		want("a×1 b×1 a×499")
		l.Record(denial("a"))
		l.Record(denial("b"))
		want("a×1 b×1 a×499 b×1") // b had been quiet
		time.Sleep(coalesceInterval)
		want("a×1 b×1 a×499 b×1 a×1")
		l.Record(denial("a"))
		l.Record(Event{Box: "b", Name: "c", Verdict: policy.Allow})
		l.Record(Event{Box: "b", Name: "c", Verdict: policy.Allow}) // allowed decisions are emitted one by one
		l.Flush()
		want("a×1 b×1 a×499 b×1 a×1 c×1 c×1 a×1")
		if got := metric(t, l, "boxgate_decisions_total", "action=refuse,reason=not_allowed,stage=conn,verdict=deny"); got != 504 {
			t.Errorf("the metrics have %v of 504", got)
		}
		time.Sleep(time.Minute) // and no timer is running
	})
}

// A box that keeps trying new destinations gets a bounded number of lines, and every refusal is counted in one of them.
func TestRefusalsOfManyKindsAreCountedToTheLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w written
		l := New(Options{Lines: lines.New(&w), PerBox: 100000})
		const kinds, seconds = 5000, 3
		for s := range seconds {
			for i := range kinds {
				l.Record(denial(fmt.Sprintf("n%d.s%d", i, s)))
				l.Record(denial("always"))
			}
			e := denial("x")
			e.Reason = name.ReasonDeniedDomain
			for range 10 {
				l.Record(e)
			}
			time.Sleep(coalesceInterval)
			synctest.Wait()
		}
		l.Forget("another") // this emits no other box's refusals
		ctx := t.Context()
		stream := l.Subscribe(ctx, Filter{})
		l.Record(Event{Box: "quiet", Name: "q", Stage: policy.StageDNS})
		if e := <-stream.Events(); e.Name != "q" {
			t.Errorf("another box's refusal was not told at once: %+v", e)
		}
		l.Flush()
		lines := strings.Count(w.by(t, l), "\n")
		if lines > refusalBurst*2+seconds*(2*refusalKinds+4) {
			t.Errorf("%d lines in %d seconds", lines, seconds)
		}
		total, always := uint64(0), uint64(0)
		for _, e := range l.Recent(Filter{Box: "b"}) {
			total += max(e.Count, 1)
			if e.Name == "always" {
				always += max(e.Count, 1)
			}
			if e.Name == "" && (e.Addr != netip.Addr{} || e.Port != 0 || e.Error == "") {
				t.Errorf("the rest has a destination: %+v", e)
			}
		}
		if total != seconds*(2*kinds+10) || always != seconds*kinds {
			t.Errorf("%d refusals are logged, %d of one kind; want %d and %d", total, always, seconds*(2*kinds+10), seconds*kinds)
		}
	})
}

func TestRingKeepsWhatHappenedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{PerBox: 4})
		l.Record(denial("once"))
		for range 50 {
			l.Record(denial("loop"))
			l.Record(Event{Box: "b", Name: "allowed", Verdict: policy.Allow, BytesIn: 1})
			time.Sleep(2 * coalesceInterval) // slow enough for each to be emitted
		}
		if got := emitted(l); got != "once×1 allowed×49 loop×50 allowed×1" && got != "once×1 loop×50 allowed×50" && got != "once×1 loop×49 loop×1 allowed×50" {
			t.Errorf("remembered %s", got)
		}
		in := int64(0)
		for _, e := range l.Recent(Filter{}) {
			in += e.BytesIn
		}
		if in != 50 {
			t.Errorf("%d bytes are remembered of 50", in)
		}
		for i := range 10 {
			l.Record(denial(fmt.Sprint(i)))
		}
		if got := emitted(l); got != "allowed×50 7×1 8×1 9×1" { // allowed decisions have their own share
			t.Errorf("of different events %s is remembered", got)
		}
	})
}

// As many denials are marked as the self-test announced, and only until it ends.
func TestSelfTestMarksNoMoreThanIsExpected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		end := l.ExpectSelfTest("b", []Expected{{Count: 2, Match: func(e Event) bool { return e.Name == "announced" }}})
		other := denial("announced")
		other.Box = "another"
		l.Record(other)
		forged := denial("not announced")
		forged.SelfTest = true // only the log may set it
		l.Record(forged)
		for range 50 {
			l.Record(denial("announced"))
		}
		end()
		l.Record(denial("announced"))
		l.Flush()
		marked, own := uint64(0), uint64(0)
		for _, e := range l.Recent(Filter{}) {
			if e.SelfTest {
				marked += max(e.Count, 1)
				if e.Name != "announced" {
					t.Errorf("marked: %s", Line(e))
				}
			} else {
				own += max(e.Count, 1)
			}
		}
		if marked != 2 || own != 51 {
			t.Errorf("%d are marked and %d are not", marked, own)
		}
		if got := metric(t, l, "boxgate_decisions_total", "action=refuse,reason=not_allowed,stage=conn,verdict=deny"); got != 51 {
			t.Errorf("the metrics have %v of the boxes'", got)
		}
	})
}

// flow is an event about a connection of the kernel to the n-th of many destinations.
func flow(proto policy.Protocol, phase Phase, n int) Event {
	e := Event{
		Box: "b", Stage: policy.StageKernel, Protocol: proto, Addr: netip.AddrFrom4([4]byte{203, 0, byte(n >> 8), byte(n)}),
		Port: 443, Verdict: policy.Allow, Action: ActionKernel, Reason: name.ReasonAllowAll, Phase: phase, Conn: fmt.Sprint("ct", n),
	}
	if phase == PhaseEnd {
		e.BytesOut = 10
	}
	return e
}

// sum adds up the counts of the events of a phase.
func sum(l *Log, phase Phase) (lines int, n, bytes uint64) {
	for _, e := range l.Recent(Filter{}) {
		if e.Phase == phase {
			lines, n, bytes = lines+1, n+max(e.Count, 1), bytes+uint64(e.BytesOut)
		}
	}
	return lines, n, bytes
}

func isNamed(l *Log, e Event) bool {
	for _, o := range l.Recent(Filter{}) {
		if o.Protocol == e.Protocol && o.Addr == e.Addr && o.Port == e.Port {
			return true
		}
	}
	return false
}

// An answered connection is named regardless of the number of datagrams, refusals and unanswered TCP connections.
func TestAnAnsweredConnectionIsNamedWhateverIsBesidesIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{PerBox: 1 << 20})
		for i := range 30000 {
			l.Record(flow(policy.UDP, PhaseOpen, i))
			l.Record(flow(policy.TCP, PhaseOpen, i))
			l.Record(denial(fmt.Sprint(i)))
		}
		hidden := flow(policy.TCP, PhaseOpen, 40000)
		l.Record(hidden)
		if isNamed(l, hidden) {
			t.Error("there is room for more than is said; try with more decoys")
		}
		e := hidden
		e.Phase, e.Answered = PhaseOngoing, true
		l.Record(e) // found in the kernel's table
		if !isNamed(l, hidden) {
			t.Error("an answered connection is not named while it goes on")
		}
		other := flow(policy.TCP, PhaseEnd, 40001)
		other.Answered = true
		l.Record(other)
		if !isNamed(l, other) {
			t.Error("an answered connection is not named at its end")
		}
		l.Flush()
		if _, n, _ := sum(l, PhaseOpen); n != 60001 {
			t.Errorf("the events stand for %d of 60001 flows", n)
		}
		left := uint64(0)
		for _, e := range l.Recent(Filter{}) {
			if e.Reason == name.ReasonUnnamed {
				left += e.Destinations
				if e.Addr.IsValid() || e.Port != 0 || e.Error == "" || e.Phase != PhaseOpen {
					t.Errorf("event %+v", e)
				}
			}
		}
		if want := uint64(60001 - 1024 - 512); left < want*9/10 || left > want*11/10 {
			t.Errorf("%d destinations are said to be unnamed, of %d", left, want)
		}
		if got := metric(t, l, "boxgate_unnamed_flows_total", ""); got != 60001-1024-512 {
			t.Errorf("the metric has %v unnamed flows", got)
		}
	})
}

// Repeated connections to one destination take few lines, with their exact number and bytes.
func TestFlowsToOneDestinationAreCountedExactly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{PerBox: 1 << 20})
		const seconds, each = 20, 1000
		for range seconds {
			for range each {
				l.Record(flow(policy.TCP, PhaseOpen, 1))
				l.Record(flow(policy.TCP, PhaseEnd, 1))
			}
			time.Sleep(coalesceInterval)
			synctest.Wait()
		}
		l.Flush()
		for phase, wantBytes := range map[Phase]uint64{PhaseOpen: 0, PhaseEnd: 10 * seconds * each} {
			lines, n, bytes := sum(l, phase)
			if n != seconds*each || bytes != wantBytes || lines > 30*seconds {
				t.Errorf("%s: %d lines stand for %d flows and %d bytes", phase, lines, n, bytes)
			}
		}
		if got := metric(t, l, "boxgate_decisions_total", "action=kernel,reason=allow_all,stage=kernel,verdict=allow"); got != seconds*each {
			t.Errorf("the metrics have %v", got)
		}
	})
}

// The memory is bounded in size and time; a forgotten destination is logged again.
func TestMemoryOfDestinationsIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		for i := range 100000 {
			e := flow(policy.TCP, PhaseOngoing, i)
			e.Addr = netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)})
			e.Answered = true
			l.Record(e)
			if i%100 == 0 {
				time.Sleep(coalesceInterval / 10)
			}
		}
		l.coalescer.mu.Lock()
		known := l.coalescer.boxes["b"].flows.lanes[laneAnswered].known
		l.coalescer.mu.Unlock()
		if n := len(known.new) + len(known.old); n > 2*flowLimits[laneAnswered].burst {
			t.Errorf("%d destinations are remembered", n)
		}
		time.Sleep(3 * flowMemory)
		synctest.Wait()
		l.coalescer.mu.Lock()
		boxes := len(l.coalescer.boxes)
		l.coalescer.mu.Unlock()
		if boxes != 0 {
			t.Error("a box that is silent is not forgotten")
		}
		l.Record(flow(policy.UDP, PhaseOpen, 7))
		time.Sleep(2*flowMemory + time.Second)
		l.Record(flow(policy.UDP, PhaseOpen, 7))
		l.Record(flow(policy.UDP, PhaseOpen, 8))
		synctest.Wait()
		seven := uint64(0)
		for _, e := range l.Recent(Filter{}) {
			if e.Protocol == policy.UDP && e.Addr.As4()[3] == 7 {
				seven += max(e.Count, 1) // the ring may have merged them
			}
		}
		if seven != 2 {
			t.Errorf("told %d times", seven)
		}
		l.Flush()
	})
}

// A reader that is too slow for a burst of datagrams still receives the connection among them.
func TestSlowReaderHearsOfTheConnectionAmongDatagrams(t *testing.T) {
	t.Parallel()
	l := New(Options{Buffer: 64})
	stream := l.Subscribe(t.Context(), Filter{})
	for i := range 400 {
		l.Record(flow(policy.UDP, PhaseOpen, i))
	}
	l.Record(flow(policy.TCP, PhaseOpen, 1000))
	for len(stream.Events()) > 0 {
		if e := <-stream.Events(); e.Protocol == policy.TCP {
			return
		}
	}
	t.Errorf("the connection is among the %d events that were lost", stream.Lost())
}

// The remembered events of a box include the connection, despite later events.
func TestRingKeepsTheConnectionAmongDatagrams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		l.Record(flow(policy.TCP, PhaseOpen, 1000))
		for i := range 500 {
			l.Record(flow(policy.UDP, PhaseOpen, i))
			l.Record(denial(fmt.Sprint(i)))
		}
		if !isNamed(l, flow(policy.TCP, PhaseOpen, 1000)) {
			t.Error("the connection is forgotten")
		}
	})
}

// Refused lookups do not hide a box's attempts to connect.
func TestRefusalsOfOneKindDoNotHideAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{PerBox: 1 << 20})
		for i := range 5000 {
			e := denial(fmt.Sprint(i))
			e.Stage = policy.StageDNS
			l.Record(e)
			e.Stage, e.Protocol = policy.StageKernel, policy.UDP
			l.Record(e)
		}
		l.Record(denial("evil"))
		tcp := denial("")
		tcp.Stage, tcp.Protocol, tcp.Addr = policy.StageKernel, policy.TCP, netip.MustParseAddr("192.0.2.1")
		l.Record(tcp)
		for _, want := range []Event{denial("evil"), tcp} {
			if !isNamed(l, want) {
				found := false
				for _, e := range l.Recent(Filter{}) {
					found = found || e.Name == want.Name && e.Stage == want.Stage && e.Addr == want.Addr
				}
				if !found {
					t.Errorf("not told: %+v", want)
				}
			}
		}
		l.Flush()
	})
}

// The ports and addresses of one server, or one IPv6 network, do not use up the limit for others.
func TestOneNetworkDoesNotHideAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{PerBox: 1 << 20})
		six := netip.MustParseAddr("2001:db8:bad::1").As16()
		const n = 10000
		for i := range n {
			e := flow(policy.TCP, PhaseOpen, 1)
			e.Port = uint16(i + 1)
			l.Record(e)
			six[14], six[15] = byte(i>>8), byte(i)
			e.Addr, e.Answered = netip.AddrFrom16(six), true
			l.Record(e)
		}
		hidden := flow(policy.TCP, PhaseOpen, 2)
		l.Record(hidden)
		if !isNamed(l, hidden) {
			t.Error("the connection to another server is not named")
		}
		l.Flush()
		lines, total, _ := sum(l, PhaseOpen)
		if total != 2*n+1 || lines > 4*flowsOfNetwork+100 {
			t.Errorf("%d lines stand for %d flows", lines, total)
		}
		for _, e := range l.Recent(Filter{}) {
			if e.Reason == name.ReasonUnnamed || !e.Addr.IsValid() {
				t.Errorf("not even the network is named: %s", Line(e))
			}
		}
		for _, network := range []string{"203.0.0.1", "2001:db8:bad::"} {
			want := flow(policy.TCP, PhaseOpen, 0)
			want.Addr, want.Port = netip.MustParseAddr(network), 0
			if !isNamed(l, want) {
				t.Errorf("%s is not named as a whole", network)
			}
		}
	})
}

package audit

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

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

package audit

import (
	"net/netip"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"boxgate/policy"
	"boxgate/policy/name"
)

const (
	// flowMemory is the minimum time for which a destination without traffic is remembered. The maximum is twice as
	// long.
	flowMemory = 5 * time.Minute
	// flowRepeats is how many events per second and lane are emitted one by one for known destinations.
	flowRepeats = 25
	// flowsPerInterval is how many destinations of each lane get a coalesced event per interval. The others wait for
	// the next interval.
	flowsPerInterval = 25
	// flowsOfNetwork is how many destinations of one network (an IPv4 address, or an IPv6 /64) a lane distinguishes:
	// the owner of one server has all its ports, and any number of IPv6 addresses.
	flowsOfNetwork = 64
	// flowPending is how many destinations of each lane can have a coalesced event pending.
	flowPending = 256
)

// lane is a kind of flow with its own budgets, so that flows that are cheap to make do not displace the others.
type lane uint8

const (
	laneAnswered lane = iota // TCP whose peer completed the handshake
	laneTCP                  // TCP with an incomplete handshake
	laneUDP
	laneICMP
	lanes
)

// flowLimits is how many new destinations of a lane are logged in a burst, and then per second. Up to twice the burst is
// remembered.
var flowLimits = [lanes]struct {
	burst  int
	second rate.Limit
}{laneAnswered: {4096, 50}, laneTCP: {1024, 25}, laneUDP: {512, 10}, laneICMP: {64, 2}}

// isFlow reports whether an event is about a connection that the kernel forwards.
func isFlow(e *Event) bool {
	return e.Stage == policy.StageKernel && e.Verdict == policy.Allow && e.Phase != ""
}

func laneOf(e *Event) lane {
	switch {
	case e.Protocol == policy.TCP && e.Answered:
		return laneAnswered
	case e.Protocol == policy.TCP:
		return laneTCP
	case e.Protocol == policy.UDP:
		return laneUDP
	default:
		return laneICMP
	}
}

// flowKey is the destination of a flow. It contains no pointers, because thousands are kept.
type flowKey struct {
	addr [16]byte
	port uint16
	lane lane // laneTCP for both lanes of TCP
}

func flowKeyOf(e *Event) flowKey {
	k := flowKey{addr: e.Addr.As16(), port: e.Port, lane: laneOf(e)}
	if k.lane == laneAnswered {
		k.lane = laneTCP
	}
	return k
}

// network returns the key for all destinations that presumably have the same owner.
func (k flowKey) network() flowKey {
	if k.port = 0; !netip.AddrFrom16(k.addr).Is4In6() {
		clear(k.addr[8:])
	}
	return k
}

// flows are the connections that the kernel forwards for one box, by destination. The zero value is empty.
type flows struct {
	lanes [lanes]*flowLane
}

// flowLane is the state of one lane.
type flowLane struct {
	newLimiter    *rate.Limiter // limits new destinations
	repeatLimiter *rate.Limiter
	known         destinationMemory
	pending       map[flowKind]*flowSum // of known destinations
	overflow      map[Phase]*flowSum    // the overflow of pending
	unnamed       map[Phase]*unnamed    // of unknown destinations beyond newLimiter
}

// flowKind is the key of a coalesced event: the beginnings, or the ends, of flows to one destination.
type flowKind struct {
	flowKey
	phase Phase
}

// flowSum is the sum of pending events.
type flowSum struct {
	latest  Event // the latest
	n       uint64
	in, out int64
}

// unnamed are flows to destinations that are not logged by name.
type unnamed struct {
	flowSum
	destinations sketch
}

func (s *flowSum) add(e *Event) {
	s.latest = *e
	s.latest.Headers = slices.Clone(e.Headers)
	s.n += max(e.Count, 1)
	s.in, s.out = s.in+e.BytesIn, s.out+e.BytesOut
}

// event returns the event that summarizes them.
func (s *flowSum) event() Event {
	e := s.latest
	if e.BytesIn, e.BytesOut = s.in, s.out; s.n > 1 {
		e.Count, e.Conn, e.Duration = s.n, "", 0
	}
	return e
}

func (f *flows) lane(n lane) *flowLane {
	if f.lanes[n] == nil {
		room := flowLimits[n]
		f.lanes[n] = &flowLane{
			newLimiter: rate.NewLimiter(room.second, room.burst), repeatLimiter: rate.NewLimiter(flowRepeats, 2*flowRepeats),
			known: destinationMemory{limit: room.burst}, pending: map[flowKind]*flowSum{}, overflow: map[Phase]*flowSum{},
			unnamed: map[Phase]*unnamed{},
		}
	}
	return f.lanes[n]
}

// admit reports whether to emit the event of a flow now. Otherwise the event is counted and emitted later, unless it is
// about an ongoing flow, which was counted when it began.
func (f *flows) admit(e *Event) bool {
	key, l := flowKeyOf(e), f.lane(laneOf(e))
	known := f.isKnown(key, e)
	if network := key.network(); !known && l.known.networks[network] >= flowsOfNetwork {
		key, known = network, f.isKnown(network, e)
		e.Addr, e.Port, e.Conn = netip.AddrFrom16(network.addr).Unmap(), 0, ""
		e.Error = "many ports or addresses of one network, reported together"
	}
	if known {
		switch {
		case e.Phase == PhaseOngoing:
			return false
		case l.repeatLimiter.Allow():
			return true
		}
		l.coalesce(key, e)
		return false
	}
	if l.newLimiter.Allow() {
		l.known.add(key, e.Time)
		return true
	}
	if e.Phase != PhaseOngoing {
		u := l.unnamed[e.Phase]
		if u == nil {
			u = &unnamed{}
			l.unnamed[e.Phase] = u
		}
		u.add(e)
		u.destinations.add(key)
	}
	return false
}

// isKnown reports whether the destination has been logged. For TCP, either lane counts for both.
func (f *flows) isKnown(key flowKey, e *Event) bool {
	if l := f.lanes[key.lane]; l != nil && l.known.has(key, e.Time) {
		return true
	}
	l := f.lanes[laneAnswered]
	return key.lane == laneTCP && l != nil && l.known.has(key, e.Time)
}

// coalesce adds an event to the pending ones.
func (l *flowLane) coalesce(key flowKey, e *Event) {
	kind := flowKind{key, e.Phase}
	sum := l.pending[kind]
	switch {
	case sum != nil:
	case len(l.pending) < flowPending:
		sum = &flowSum{}
		l.pending[kind] = sum
	default:
		if sum = l.overflow[e.Phase]; sum == nil {
			sum = &flowSum{}
			l.overflow[e.Phase] = sum
		}
	}
	sum.add(e)
}

// takePending returns events for the pending flows: for up to most destinations of each lane, or for all if most is
// negative.
func (f *flows) takePending(most int) []Event {
	var events []Event
	for _, l := range f.lanes {
		if l == nil {
			continue
		}
		taken := 0
		for kind, sum := range l.pending {
			if taken == most {
				break
			}
			taken++
			events = append(events, sum.event())
			delete(l.pending, kind)
		}
		for _, sum := range l.overflow {
			events = append(events, byNumber(sum, 0, "connections to destinations logged before, reported by count"))
		}
		for _, u := range l.unnamed {
			events = append(events, byNumber(&u.flowSum, u.destinations.count(), "connections to more destinations than can be named, reported by count"))
		}
		clear(l.overflow)
		clear(l.unnamed)
	}
	return events
}

// byNumber returns an event that counts flows without naming their destinations.
func byNumber(s *flowSum, destinations uint64, why string) Event {
	e := s.event()
	e.Addr, e.Port, e.Rule, e.Conn, e.Duration = netip.Addr{}, 0, "", "", 0
	e.Count, e.Destinations, e.Error = s.n, destinations, why
	if destinations > 0 {
		e.Reason = name.ReasonUnnamed
	}
	return e
}

// isQuiet reports whether no event is pending.
func (f *flows) isQuiet() bool {
	for _, l := range f.lanes {
		if l != nil && len(l.pending)+len(l.overflow)+len(l.unnamed) > 0 {
			return false
		}
	}
	return true
}

// isEmpty reports whether no destination is remembered.
func (f *flows) isEmpty() bool { return f.lanes == [lanes]*flowLane{} }

package audit

import (
	"hash/maphash"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/policy/name"
)

// coalesceInterval is the minimum time between two events for the same refusals or flows.
const coalesceInterval = time.Second

// coalescer keeps a box from flooding the log with events that it can cause without limit: refusals, flows that the
// kernel forwards, and the gateway's answers to strangers. The first event about a destination is emitted immediately;
// later ones are coalesced into one event with their count. The memory for distinguishing destinations is bounded per
// box. Events beyond it are only counted, but every event is counted. Safe for concurrent use.
type coalescer struct {
	emit func(*Event)

	mu    sync.Mutex
	boxes map[policy.BoxID]*coalesced
}

// coalesced is the state of one box.
type coalesced struct {
	mu       sync.Mutex // held while emitting, which keeps the events of the box in order without blocking other boxes
	refusals refusals
	flows    flows
	timer    *time.Timer
	idle     bool // no event is pending, and the timer fires when the state may be dropped
	dropped  bool // the next event of the box needs a new state
}

// coalesces reports whether a box, or a stranger who visits its public URLs, can cause the event without limit. The two
// events of an open connection that is refused belong together and are exempt: the connection had to be made first.
func coalesces(e *Event) bool {
	switch {
	case e.Verdict != policy.Allow:
		return e.Phase == "" || isFlow(e)
	case e.Action == ActionAnswer:
		return e.Credential == "" || e.Credential == CredentialNone
	default:
		return isFlow(e)
	}
}

// admit reports whether to emit the event now. Otherwise the event is counted and emitted later. admit may turn the
// event of a flow into one about its network.
func (c *coalescer) admit(e *Event) bool {
	b := c.lockBox(e.Box)
	defer b.mu.Unlock()
	if b.idle {
		b.idle = false
		b.timer.Reset(fault.Interval(coalesceInterval))
	}
	if isFlow(e) {
		return b.flows.admit(e)
	}
	return b.refusals.admit(e)
}

// lockBox returns the state of a box, locked.
func (c *coalescer) lockBox(box policy.BoxID) *coalesced {
	for {
		b := c.stateOf(box)
		b.mu.Lock()
		if !b.dropped {
			return b
		}
		b.mu.Unlock()
	}
}

// stateOf returns the state of a box, and creates it if needed. It may be dropped before the caller locks it.
func (c *coalescer) stateOf(box policy.BoxID) *coalesced {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.boxes[box]
	if b == nil {
		b = &coalesced{}
		b.mu.Lock() // due needs the timer
		defer b.mu.Unlock()
		b.timer = time.AfterFunc(fault.Interval(coalesceInterval), func() { c.endInterval(box, b) })
		c.boxes[box] = b
	}
	return b
}

// dropLocked drops the state of a box. The caller holds b.mu.
func (c *coalescer) dropLocked(box policy.BoxID, b *coalesced) {
	b.dropped = true
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.boxes, box)
}

// endInterval ends an interval of a box, and begins the next one if the interval had events.
func (c *coalescer) endInterval(box policy.BoxID, b *coalesced) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.dropped: // flushed
	case b.idle:
		c.dropLocked(box, b)
	default:
		c.emitAll(append(b.refusals.takePending(), b.flows.takePending(flowsPerInterval)...))
		switch {
		case !b.refusals.isQuiet() || !b.flows.isQuiet():
			b.timer.Reset(fault.Interval(coalesceInterval))
		case b.flows.isEmpty():
			c.dropLocked(box, b)
		default:
			b.idle = true
			b.timer.Reset(flowMemory)
		}
	}
}

// emitAll emits events in the order of their times.
func (c *coalescer) emitAll(events []Event) {
	slices.SortStableFunc(events, func(x, y Event) int { return x.Time.Compare(y.Time) })
	for i := range events {
		c.emit(&events[i])
	}
}

// flush emits the pending events of a box and drops its state.
func (c *coalescer) flush(box policy.BoxID) {
	c.mu.Lock()
	b := c.boxes[box]
	c.mu.Unlock()
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.dropped {
		b.timer.Stop()
		c.emitAll(append(b.refusals.takePending(), b.flows.takePending(-1)...))
		c.dropLocked(box, b)
	}
}

// flushAll calls flush for every box.
func (c *coalescer) flushAll() {
	c.mu.Lock()
	boxes := make([]policy.BoxID, 0, len(c.boxes))
	for id := range c.boxes {
		boxes = append(boxes, id)
	}
	c.mu.Unlock()
	for _, id := range boxes {
		c.flush(id)
	}
}

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

// destinationMemory remembers destinations for at least flowMemory, at most twice its limit of them. Beyond that, the
// older half is dropped. All operations take constant time.
type destinationMemory struct {
	limit    int
	new, old map[flowKey]struct{}
	networks map[flowKey]int // number of destinations in new, by network
	since    time.Time       // when new was started
}

// has reports whether the destination is remembered, and if so renews it.
func (m *destinationMemory) has(k flowKey, now time.Time) bool {
	m.expire(now)
	if _, ok := m.new[k]; ok {
		return true
	}
	_, ok := m.old[k]
	if ok {
		m.add(k, now)
	}
	return ok
}

func (m *destinationMemory) add(k flowKey, now time.Time) {
	if m.new == nil || len(m.new) >= m.limit {
		m.rotate(now)
	}
	m.new[k] = struct{}{}
	if n := k.network(); n != k {
		m.networks[n]++
	}
}

func (m *destinationMemory) rotate(now time.Time) {
	m.old, m.new, m.since = m.new, map[flowKey]struct{}{}, now
	m.networks = map[flowKey]int{}
}

// expire drops destinations that are too old.
func (m *destinationMemory) expire(now time.Time) {
	if age := now.Sub(m.since); age > 2*flowMemory {
		m.old, m.new, m.networks = nil, nil, nil
	} else if age > flowMemory && m.new != nil {
		m.rotate(now)
	}
}

// sketch estimates the number of distinct destinations, to a few percent up to about 100,000 (linear counting: from the
// number of bits of a bitmap that are still zero).
type sketch struct {
	bits []uint64
}

const sketchWords = 256

var sketchSeed = maphash.MakeSeed()

func (s *sketch) add(k flowKey) {
	if s.bits == nil {
		s.bits = make([]uint64, sketchWords)
	}
	h := maphash.Comparable(sketchSeed, k)
	s.bits[h>>6%sketchWords] |= 1 << (h & 63)
}

func (s *sketch) count() uint64 {
	if s.bits == nil {
		return 0
	}
	zero := 0
	for _, w := range s.bits {
		zero += 64 - bits.OnesCount64(w)
	}
	const size = 64 * sketchWords
	return uint64(math.Round(size * math.Log(size/float64(max(zero, 1)))))
}

const (
	// refusalKinds is how many different refusals of a box are logged separately per second, and refusalBurst how many
	// in a burst. Each budget (see budgetOf) has its own limit.
	refusalKinds = 10
	refusalBurst = 200
)

// refusals are the refusals of one box in the current interval. The zero value is empty.
type refusals struct {
	limiters [budgets]*rate.Limiter // limits new kinds
	known    map[refusal]*repeats   // kinds already logged; at most refusalBurst + refusalKinds of each budget
	overflow map[class]*repeats     // kinds beyond the limit
}

// budget is a group of refusals that share a limit in the log. Refusals of one budget do not displace refusals of
// another: a box that looks up thousands of forbidden names cannot hide its attempts to connect.
type budget uint8

const (
	budgetKernel   budget = iota // packets other than TCP, refused by the kernel
	budgetTCP                    // TCP refused by the kernel
	budgetNames                  // DNS queries
	budgetProxy                  // connections and requests at the proxy
	budgetVisitors               // requests to public URLs
	budgetSelfTest
	budgets
)

func budgetOf(e *Event) budget {
	switch {
	case e.SelfTest:
		return budgetSelfTest
	case e.Stage == policy.StageKernel && e.Protocol == policy.TCP:
		return budgetTCP
	case e.Stage == policy.StageKernel:
		return budgetKernel
	case e.Stage == policy.StageDNS:
		return budgetNames
	case e.Stage == policy.StageURL:
		return budgetVisitors
	default:
		return budgetProxy
	}
}

// refusal is the key under which refusals of a box are coalesced.
type refusal struct {
	class
	protocol     policy.Protocol
	name         string
	addr, peer   netip.Addr
	port         uint16
	method, path string
	messages     string
	credential   Credential
	action       Action
	rule         string
	status       int
}

// class identifies refusals that are only counted.
type class struct {
	stage    policy.Stage
	reason   name.Reason
	selfTest bool
}

// repeats are pending refusals.
type repeats struct {
	latest  Event
	n       uint64
	in, out int64
}

func refusalOf(e *Event) refusal {
	return refusal{
		class: class{e.Stage, e.Reason, e.SelfTest}, protocol: e.Protocol, name: e.Name, addr: e.Addr, peer: e.Peer, port: e.Port, method: e.Method,
		path: e.Path, messages: e.Messages, credential: e.Credential, action: e.Action, rule: e.Rule, status: e.Status,
	}
}

func (r *repeats) add(e *Event) {
	r.latest = *e
	r.latest.Headers = slices.Clone(e.Headers)
	r.n += max(e.Count, 1)
	r.in, r.out = r.in+e.BytesIn, r.out+e.BytesOut
}

// takeEvent returns one event for all pending refusals and resets r; ok is false without pending refusals.
func (r *repeats) takeEvent() (e Event, ok bool) {
	if r.n == 0 {
		return Event{}, false
	}
	e = r.latest
	if e.BytesIn, e.BytesOut = r.in, r.out; r.n > 1 {
		e.Count = r.n
	}
	*r = repeats{}
	return e, true
}

// admit reports whether to emit the refusal now. Otherwise the refusal is counted and emitted later.
func (r *refusals) admit(e *Event) bool {
	if r.known == nil {
		r.known, r.overflow = map[refusal]*repeats{}, map[class]*repeats{}
	}
	kind := refusalOf(e)
	if like := r.known[kind]; like != nil {
		like.add(e)
		return false
	}
	room := r.limiters[budgetOf(e)]
	if room == nil {
		room = rate.NewLimiter(refusalKinds, refusalBurst)
		r.limiters[budgetOf(e)] = room
	}
	if e.SelfTest || room.Allow() { // self-tests have a bounded number
		r.known[kind] = &repeats{}
		return true
	}
	rest := r.overflow[kind.class]
	if rest == nil {
		rest = &repeats{}
		r.overflow[kind.class] = rest
	}
	rest.add(e)
	return false
}

// takePending returns events for the pending refusals. Up to refusalKinds recurring kinds of each budget stay known; the
// others count as new again.
func (r *refusals) takePending() []Event {
	var events []Event
	kept := [budgets]int{}
	for kind, like := range r.known {
		e, ok := like.takeEvent()
		if !ok {
			delete(r.known, kind)
			continue
		}
		events = append(events, e)
		if of := budgetOf(&e); kept[of] < refusalKinds {
			kept[of]++
		} else {
			delete(r.known, kind)
		}
	}
	for _, rest := range r.overflow {
		if e, ok := rest.takeEvent(); ok {
			e.Name, e.Addr, e.Peer, e.Port = "", netip.Addr{}, netip.Addr{}, 0
			e.Method, e.Path, e.Messages, e.Credential, e.Rule, e.Status = "", "", "", "", "", 0
			e.Error = otherKinds(e.Verdict)
			events = append(events, e)
		}
	}
	clear(r.overflow)
	return events
}

// otherKinds is the error text of an event that only counts.
func otherKinds(v policy.Verdict) string {
	if v == policy.Allow {
		return "requests of other kinds, reported by count"
	}
	return "refusals of other kinds, reported by count"
}

// isQuiet reports whether r can be dropped without losing state.
func (r *refusals) isQuiet() bool {
	for _, room := range r.limiters {
		if room != nil && room.Tokens() < refusalBurst {
			return false
		}
	}
	return len(r.known) == 0
}

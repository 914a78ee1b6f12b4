package dns

import (
	"context"
	"net/netip"
	"strconv"
	"sync"
	"time"

	mdns "github.com/miekg/dns"
	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/dns/outbound"
	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Server answers the boxes' DNS queries according to their policies. It is safe for concurrent use.
type Server struct {
	boxes    Boxes
	sinkV4   netip.Addr
	sinkV6   netip.Addr
	isURL    func(name.Name) bool
	isInside func(*policy.Box, name.Name) bool
	cluster  *Zone         // nil: there is none
	minGrant time.Duration // minimum duration of a grant
	audit    Recorder
	log      *zap.Logger
	limits   Limits
	cache    *cache
	grants   *grants
	usages   *usages
	budget   *outbound.Budget // for the sockets of the readers' own questions
	up       *forwarder       // for the readers' own questions; nil: readers do not ask upstream

	retiring    context.Context // ends when the server retires
	retire      context.CancelFunc
	acceptLoops sync.WaitGroup // counts the loops that accept connections or read queries

	readLoops sync.WaitGroup // counts the loops that read queries, until their last answer

	tcpIdle time.Duration // how long a client may take to send its next query completely

	connCounts sync.Map // net.Listener → *atomic.Int64: its open connections
}

// Retire stops reading queries and accepting connections, and returns when that has stopped. Queries in flight and on
// open connections are still answered, which may take as long as a lookup. The sockets stay usable for another process
// that has them too, which calls [ResumeSocket].
func (s *Server) Retire() {
	s.retire()
	s.acceptLoops.Wait()
}

// WaitAnswered returns once every UDP query read before [Server.Retire] returned is answered.
func (s *Server) WaitAnswered() { s.readLoops.Wait() }

// trackAccepting counts a loop that reads queries or accepts connections until the returned function is called. Calling
// it again is a no-op.
func (s *Server) trackAccepting() (end func()) {
	s.acceptLoops.Add(1)
	return sync.OnceFunc(s.acceptLoops.Done)
}

// New returns a server that is ready to answer. It opens no socket.
func New(c Config) (*Server, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	fwd, err := newForwarder(c)
	if err != nil {
		return nil, err
	}
	s := newServer(c, fwd)
	s.up = fwd
	return s, nil
}

// newServer is New with the given upstream side and a checked configuration.
func newServer(c Config, up exchanger) *Server {
	limits := c.Limits.withDefaults()
	if c.IsURL == nil {
		c.IsURL = func(name.Name) bool { return false }
	}
	if c.IsInside == nil {
		c.IsInside = func(*policy.Box, name.Name) bool { return false }
	}
	retiring, retire := context.WithCancel(context.Background())
	return &Server{
		retiring: retiring, retire: retire,
		tcpIdle:  tcpIdle,
		boxes:    c.Boxes,
		sinkV4:   c.SinkV4,
		sinkV6:   c.SinkV6,
		isURL:    c.IsURL,
		isInside: c.IsInside,
		cluster:  c.Cluster,
		minGrant: c.MinGrant,
		audit:    c.Audit,
		log:      c.Log,
		limits:   limits,
		cache:    newCache(up, limits.CacheBytes, limits.Lookups),
		budget:   outbound.NewBudget(limits.Sockets),
		grants:   newGrants(limits.GrantsPerBox, limits.Grants),
		usages:   newUsages(limits, c.Memory, c.Boxes, c.Audit.Record),
	}
}

// Handle answers one query of a box in wire format. It returns nil if wire is shorter than a header or is a response. A
// nil box is refused. One audit event records the decision.
//
//  1. The audit event is opened as a denial.
//  2. The query is parsed.
//  3. An unknown box, a box over its limits, and queries that boxes may not send are refused.
//  4. The policy decides on the name. A denied name gets the sink or an empty answer and is not sent upstream.
//  5. A public URL of this gateway, or a service of the operator, is answered with the sink, which leads to it through the proxy, and is not sent upstream.
//  6. The name is resolved from the cache or upstream; the policy decides on each name of a CNAME chain before it is looked up.
//  7. The policy, as it is then, decides on each address.
//  8. The allowed addresses are granted to the box, then sent.
//
// The most common queries whose answers need no upstream question take a shorter path through the same steps, without
// the DNS library (direct.go).
func (s *Server) Handle(ctx context.Context, box *policy.Box, transport policy.Protocol, query []byte) []byte {
	v := s.usages.admit(box, time.Now())
	defer v.release()
	d := scratchPool.Get().(*scratch)
	defer scratchPool.Put(d)
	if out, ok := s.answerDirectly(ctx, v, transport, query, d, nil); ok {
		return out
	}
	return s.answer(ctx, v, transport, query)
}

var scratchPool = sync.Pool{New: func() any { return new(scratch) }}

// answer is Handle for a query whose admission has been decided.
func (s *Server) answer(ctx context.Context, v visit, transport policy.Protocol, wire []byte) (out []byte) {
	ev := openEvent(v, transport)
	defer func() {
		if p := recover(); p != nil {
			out = s.answerPanic(&ev, wire)
		}
		s.closeEvent(v, &ev)
	}()
	q, bad := parseQuery(wire)
	ev.Name, ev.Method = q.loggedName(), q.typeName()
	queryRead(ctx)
	var r reply
	switch {
	case v.box == nil:
		r = refuse(&ev, mdns.RcodeRefused, name.ReasonUnknownBox, edeProhibited)
	case !v.admitted:
		r = refuse(&ev, mdns.RcodeRefused, name.ReasonLimit, edeOther)
	case bad != nil:
		r = refuse(&ev, bad.rcode, bad.reason, bad.ede)
	default:
		r = s.judge(ctx, v.box, q, &ev)
	}
	setRCode(&ev, r.rcode)
	return q.pack(wire, r, transport)
}

// queryRead marks that a query has been parsed.
func queryRead(ctx context.Context) { fault.Mark(ctx, "dns: query read") }

// judge answers a well-formed query of a known box by its policy.
func (s *Server) judge(ctx context.Context, box *policy.Box, q query, ev *audit.Event) reply {
	pol := box.Policy.Load()
	name, d := decideName(pol, box.ID, q.name)
	if !name.IsZero() {
		ev.Name = name.String()
	}
	if pol != nil && s.isInside(box, name) {
		return s.inside(pol, q, ev)
	}
	setDecision(ev, d)
	if !d.Allowed() && !resolvesAnyway(pol, name, d, q.qtype) {
		return s.deny(pol, box, name, q, ev)
	}
	if d.Allowed() && (s.isURL(name) || pol.ResolvedThere(name)) {
		if name.IsService() {
			s.usages.usageOf(box).sinkTracker.recordService(name)
		}
		return s.url(q, ev)
	}
	res, err := s.resolve(ctx, box, name, q.qtype)
	if err != nil {
		return unresolved(ev, err)
	}
	if box.Policy.Load() != pol {
		// The policy changed during the lookup: decide again. The answer is in the cache.
		return s.judge(ctx, box, q, ev)
	}
	if !isAddress(q.qtype) {
		ev.Action = audit.ActionForward
		return res.reply(q)
	}
	return s.grantAddresses(pol, box, name, q, res, ev)
}

// decideName decides on the name alone. A name that is legal in DNS but not a host name is never allowed.
func decideName(pol *policy.Compiled, box policy.BoxID, asked string) (name.Name, policy.Decision) {
	host, err := parseName(asked)
	if err != nil {
		d := policy.Decision{Reason: name.ReasonNotAllowed}
		if pol == nil {
			d.Reason = name.ReasonNoPolicy
		} else {
			d.Version = pol.Version()
		}
		return name.Name{}, d
	}
	return host, pol.Decide(policy.Request{Stage: policy.StageDNS, Box: box, Name: host})
}

// resolvesAnyway reports whether a name that is not on the allowed list is resolved nevertheless, for its addresses in
// allowed_cidrs. A name in denied_domains never is.
func resolvesAnyway(pol *policy.Compiled, host name.Name, d policy.Decision, qtype uint16) bool {
	return pol != nil && !host.IsZero() && d.Reason == name.ReasonNotAllowed && isAddress(qtype) && pol.ResolvesOthers(host)
}

// grantAddresses drops the addresses that the policy denies, grants the rest to the box, and answers with them.
func (s *Server) grantAddresses(pol *policy.Compiled, box *policy.Box, name name.Name, q query, res resolution, ev *audit.Event) reply {
	kept := res
	kept.records = nil
	var addrs []netip.Addr
	var denied policy.Decision
	var deniedAddr netip.Addr
	for _, rr := range res.records {
		a := addrOf(rr)
		d, ok := judgeAddr(pol, box, name, a)
		if !ok {
			denied, deniedAddr = d, a
			continue
		}
		if len(addrs) == 0 {
			setDecision(ev, d)
			ev.Addr = a
		}
		addrs = append(addrs, a)
		kept.records = append(kept.records, rr)
	}
	if len(addrs) == 0 && len(res.records) > 0 {
		setDecision(ev, denied)
		ev.Verdict, ev.Addr = policy.Deny, deniedAddr
		return blocked(ev)
	}
	// A name that was resolved only for its addresses stays denied if no address is allowed.
	if len(addrs) > 0 || ev.Verdict == policy.Allow {
		ev.Action = audit.ActionForward
	}
	s.grant(box, name, addrs, res.ttl())
	return kept.reply(q)
}

// judgeAddr decides on one address of a name, and reports whether the box may receive it.
func judgeAddr(pol *policy.Compiled, box *policy.Box, name name.Name, a netip.Addr) (policy.Decision, bool) {
	d := pol.Decide(policy.Request{Stage: policy.StageDNS, Box: box.ID, Name: name, Addr: a})
	return d, a.IsValid() && d.Allowed()
}

// grant grants the addresses of an answer with this TTL to a box. If the box was removed concurrently, it forgets
// them again.
func (s *Server) grant(box *policy.Box, n name.Name, addrs []netip.Addr, ttl time.Duration) {
	expires := time.Now().Add(max(ttl+grantGrace, s.minGrant))
	if first := s.grants.remember(box.ID, n, addrs, expires); first && !isServed(s.boxes, box) {
		s.grants.forget(box.ID)
	}
}

// Forget drops all state of a box. Call it after Boxes has stopped returning the box: queries in flight then add no new
// state.
func (s *Server) Forget(box policy.BoxID) {
	s.grants.forget(box)
	s.usages.forget(box)
}

// Granted reports whether the box received a as an address of n, in an answer that it may still be using.
func (s *Server) Granted(box policy.BoxID, n name.Name, a netip.Addr) bool {
	return s.grants.contains(box, n, a, time.Now())
}

// RetainGrant keeps the grant of a connection from the box to an address of n from expiring, until release is called and for a
// minute after that. It returns nil if the box has no such grant. A grant gives no permission: the policy decides on this
// connection and on later ones.
func (s *Server) RetainGrant(box policy.BoxID, n name.Name, a netip.Addr) (release func()) {
	return s.grants.retain(box, n, a)
}

// GrantedNames returns the names that were answered to the box with the address a, the latest first, without expired grants.
// For the sink it returns the name that was denied within the last seconds, or the zero name if there were several, and then the services
// that were answered with the sink, the latest first.
func (s *Server) GrantedNames(box policy.BoxID, a netip.Addr) []name.Name {
	if s.isSink(a) {
		return s.sinkNames(box, time.Now())
	}
	return s.grants.namesOf(box, a, time.Now())
}

// openEvent returns the event of a query that has not been parsed: a refusal.
func openEvent(v visit, transport policy.Protocol) audit.Event {
	ev := audit.Event{Time: v.arrived, Stage: policy.StageDNS, Protocol: transport, Action: audit.ActionRefuse, Reason: name.ReasonInternal}
	if v.box != nil {
		ev.Box = v.box.ID
	}
	return ev
}

// closeEvent records the event of a query whose answer is ready.
func (s *Server) closeEvent(v visit, ev *audit.Event) {
	ev.Duration = time.Since(ev.Time)
	s.record(v.usage, *ev)
}

// answerPanic answers a query whose handling panicked.
func (s *Server) answerPanic(ev *audit.Event, wire []byte) []byte {
	*ev = audit.Event{Time: ev.Time, Stage: ev.Stage, Protocol: ev.Protocol, Box: ev.Box, Name: ev.Name,
		Action: audit.ActionRefuse, Reason: name.ReasonInternal, Error: "fault of the gateway"}
	setRCode(ev, mdns.RcodeServerFailure)
	s.log.Error("panic while answering a DNS query", zap.Stack("stack"))
	return bareReply(wire, mdns.RcodeServerFailure)
}

// setRCode records the response code in the event.
func setRCode(ev *audit.Event, rcode int) {
	if rcode == mdns.RcodeSuccess {
		return
	}
	name, known := mdns.RcodeToString[rcode]
	if !known {
		name = strconv.Itoa(rcode)
	}
	ev.RCode = name
}

// setDecision copies a decision into the event.
func setDecision(ev *audit.Event, d policy.Decision) {
	ev.Verdict, ev.Reason, ev.Rule, ev.Version = d.Verdict, d.Reason, d.Rule, d.Version
}

// record passes the event to the audit log. Refusals that a box can provoke at line rate are coalesced.
func (s *Server) record(use *usage, ev audit.Event) {
	if ev.Reason == name.ReasonLimit || ev.Reason == name.ReasonUnknownBox {
		use.refusals.add(ev)
		return
	}
	s.audit.Record(ev)
}

// coalesceInterval is the minimum time between two events about refusals of one box.
const coalesceInterval = time.Second

// coalesced records the first refusal immediately, and later ones in one event per coalesceInterval: the latest refusal, with
// the number of refusals. Each refusal is counted.
type coalesced struct {
	record func(audit.Event) // must not block

	mu      sync.Mutex
	timer   *time.Timer // nil if the last event is older than coalesceInterval
	latest  audit.Event
	pending uint64 // refusals since the last event
}

// add records ev, or counts it for the next event.
func (c *coalesced) add(ev audit.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latest = ev
	c.pending++
	if c.timer == nil {
		c.recordLocked()
		c.timer = time.AfterFunc(fault.Interval(coalesceInterval), c.endInterval)
	}
}

// endInterval records the pending refusals when the interval ends, and starts the next interval if there were any.
func (c *coalesced) endInterval() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = nil
	if c.pending > 0 {
		c.recordLocked()
		c.timer = time.AfterFunc(fault.Interval(coalesceInterval), c.endInterval)
	}
}

// flush records the pending refusals without waiting for the interval to end.
func (c *coalesced) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if c.pending > 0 {
		c.recordLocked()
	}
}

func (c *coalesced) recordLocked() {
	ev := c.latest
	ev.Count, c.pending = c.pending, 0
	c.record(ev)
}

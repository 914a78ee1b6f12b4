package dns

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/audit"
	"boxgate/internal/memory"
	"boxgate/internal/ratelimit"
	"boxgate/policy"
)

// usages holds the usage of each box. Its keys are the gateway's boxes, not anything that a box sends.
type usages struct {
	limits  Limits
	memory  *memory.Budget
	boxes   Boxes
	unknown *usage // shared by all sources that are not boxes
	record  func(audit.Event)
	known   sync.Map // policy.BoxID → *usage
}

// usage is the current usage of the server by one box.
type usage struct {
	memory      *memory.Account
	rate        *ratelimit.Limiter
	inFlight    atomic.Int64
	lookups     atomic.Int64 // upstream lookups in flight, for its queries and its connections
	tcp         tcpConns
	sinkTracker sinkTracker
	answers     *ratelimit.Limiter // limits the refusals sent for queries that are not admitted; further ones get no answer
	refusals    coalesced

	maxLookups int64
}

// lookupsPerQuery is the number of upstream lookups that a box may have in flight per query that it may have in flight.
// It exceeds one because the proxy also looks up names for the box's connections.
const lookupsPerQuery = 4

// visit is one query being handled. Each visit ends with release.
type visit struct {
	box      *policy.Box
	arrived  time.Time
	now      time.Time // time of the direct answer
	usage    *usage
	admitted bool
	reserved int
}

// The memory, in bytes, accounted for an unanswered query, and for a connection whose client does not read its answers.
const (
	queryCost = 32 << 10
	connCost  = 128 << 10
)

func newUsages(l Limits, budget *memory.Budget, boxes Boxes, record func(audit.Event)) *usages {
	if budget == nil {
		budget = memory.New(64<<20, 64<<20)
	}
	u := &usages{limits: l, memory: budget, boxes: boxes, record: record}
	u.unknown = u.newUsage(&policy.Box{})
	return u
}

func (u *usages) newUsage(box *policy.Box) *usage {
	l, own := u.limits, &box.Limits
	perSecond := func() *ratelimit.Limiter {
		return ratelimit.New(l.QueriesPerSecond, l.Burst, func() int64 { return own.Of(policy.LimitDNSQueries, 0) })
	}
	return &usage{
		memory:     u.memory.AccountOf(string(box.ID), func(all int64) int64 { return own.Of(policy.LimitMemory, all) }),
		maxLookups: int64(lookupsPerQuery * l.InFlight),
		rate:       perSecond(),
		answers:    perSecond(),
		refusals:   coalesced{record: u.record},
	}
}

func (u *usages) usageOf(box *policy.Box) *usage {
	if box == nil {
		return u.unknown
	}
	if v, ok := u.known.Load(box.ID); ok {
		return v.(*usage)
	}
	v, found := u.known.LoadOrStore(box.ID, u.newUsage(box))
	if !found && !isServed(u.boxes, box) {
		u.known.CompareAndDelete(box.ID, v) // forget may have run before
	}
	return v.(*usage)
}

// isServed reports whether a box still exists.
func isServed(boxes Boxes, box *policy.Box) bool {
	return box.V4.IsValid() && boxes.BoxByAddr(box.V4) == box || box.V6.IsValid() && boxes.BoxByAddr(box.V6) == box
}

// admit counts a query. The query is not admitted if the box is unknown, exceeds its rate or its queries in flight, or
// has used up its memory.
func (u *usages) admit(box *policy.Box, now time.Time) visit {
	use := u.usageOf(box)
	v := visit{box: box, arrived: now, now: now, usage: use}
	inFlight := use.inFlight.Add(1)
	v.admitted = box != nil && inFlight <= int64(u.limits.InFlight) && use.rate.AllowAt(now) && use.memory.Acquire(memory.DNS, queryCost)
	if v.admitted {
		v.reserved = queryCost
	}
	return v
}

func (v visit) release() {
	v.usage.inFlight.Add(-1)
	v.usage.memory.Release(memory.DNS, v.reserved)
}

// acquireLookup counts an upstream lookup, and reports false if the box has too many in flight. After true the caller
// decrements lookups. Without this limit, the connections of one box could take every slot that the boxes share.
func (u *usage) acquireLookup() bool {
	if u.lookups.Add(1) <= u.maxLookups {
		return true
	}
	u.lookups.Add(-1)
	return false
}

// tcpConns are the TCP connections of a box, the longest idle first.
type tcpConns struct {
	mu   sync.Mutex
	list list.List // of *tcpConn
}

// connect counts a TCP connection and reports whether it may stay. If so, the caller ends it with disconnect. At the
// box's limit the connection that has been idle longest is closed instead (RFC 7766, section 6.2.3), so idle
// connections do not keep a box from asking.
func (u *usages) connect(box *policy.Box, c *tcpConn) (use *usage, ok bool) {
	use = u.usageOf(box)
	if box == nil {
		return use, false
	}
	t := &use.tcp
	t.mu.Lock()
	defer t.mu.Unlock()
	if (t.list.Len() >= u.limits.TCPConns && !t.closeIdleLocked()) || !use.memory.Acquire(memory.DNS, connCost) {
		return use, false
	}
	c.element = t.list.PushBack(c)
	return use, true
}

// closeIdleLocked closes the connection that has been idle longest, and reports whether there was one.
func (t *tcpConns) closeIdleLocked() bool {
	for e := t.list.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*tcpConn); c.inFlight == 0 {
			t.removeLocked(c)
			_ = c.Close()
			return true
		}
	}
	return false
}

func (t *tcpConns) removeLocked(c *tcpConn) {
	if c.element != nil {
		t.list.Remove(c.element)
		c.element = nil
	}
}

// beginQuery counts a query of a connection, and reports false if the connection is being closed. After true, endQuery
// must follow.
func (u *usage) beginQuery(c *tcpConn) bool {
	u.tcp.mu.Lock()
	defer u.tcp.mu.Unlock()
	if c.element == nil {
		return false
	}
	c.inFlight++
	return true
}

func (u *usage) endQuery(c *tcpConn) {
	u.tcp.mu.Lock()
	defer u.tcp.mu.Unlock()
	if c.inFlight--; c.inFlight == 0 && c.element != nil {
		u.tcp.list.MoveToBack(c.element)
	}
}

func (u *usage) disconnect(c *tcpConn) {
	u.tcp.mu.Lock()
	u.tcp.removeLocked(c)
	u.tcp.mu.Unlock()
	u.memory.Release(memory.DNS, connCost)
}

// forget drops the usage of a box, and records its pending refusals.
func (u *usages) forget(box policy.BoxID) {
	if v, ok := u.known.LoadAndDelete(box); ok {
		v.(*usage).refusals.flush()
	}
}

// flush records the pending refusals of all boxes.
func (u *usages) flush() {
	u.unknown.refusals.flush()
	u.known.Range(func(_, v any) bool {
		v.(*usage).refusals.flush()
		return true
	})
}

// inFlightTotal is the number of queries being answered, of all boxes.
func (u *usages) inFlightTotal() (n int64) {
	n = u.unknown.inFlight.Load()
	u.known.Range(func(_, v any) bool {
		n += v.(*usage).inFlight.Load()
		return true
	})
	return n
}

package dns

import (
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"

	"boxgate/internal/memory"
	"boxgate/policy"
)

// guests holds the limits of each box. Its keys are the gateway's boxes, not anything that a box sends.
type guests struct {
	limits  Limits
	memory  *memory.Budget
	unknown *guest   // stands for every source that is no box
	known   sync.Map // policy.BoxID → *guest
}

// guest is what one box is using now.
type guest struct {
	memory   *memory.Account
	rate     *rate.Limiter
	inFlight atomic.Int64
	lookups  atomic.Int64 // upstream, for its queries and its connections
	conns    atomic.Int64
	answers  *rate.Limiter // to queries that are not admitted; what is beyond gets none
	refusals coalesced

	mostLookups int64
}

// lookupsPerQuery makes the number of upstream lookups that a box may have under way of the number of its queries: the
// proxy looks names up for its connections besides.
const lookupsPerQuery = 4

// visit is one query on its way through. Every visit must leave.
type visit struct {
	box      *policy.Box
	guest    *guest
	admitted bool
	held     int
}

// What a query makes the server hold until it is answered, and a connection with answers that its client does not read, in
// bytes.
const (
	queryCost = 32 << 10
	connCost  = 128 << 10
)

func newGuests(l Limits, budget *memory.Budget) *guests {
	if budget == nil {
		budget = memory.New(64<<20, 64<<20)
	}
	return &guests{limits: l, memory: budget, unknown: newGuest(l, budget.Account(""))}
}

func newGuest(l Limits, holds *memory.Account) *guest {
	return &guest{
		memory:      holds,
		mostLookups: int64(lookupsPerQuery * l.InFlight),
		rate:        rate.NewLimiter(rate.Limit(l.QueriesPerSecond), l.Burst),
		answers:     rate.NewLimiter(rate.Limit(l.QueriesPerSecond), l.Burst),
		refusals:    coalesced{every: rate.NewLimiter(1, 1)},
	}
}

func (g *guests) of(box *policy.Box) *guest {
	if box == nil {
		return g.unknown
	}
	if v, ok := g.known.Load(box.ID); ok {
		return v.(*guest)
	}
	v, _ := g.known.LoadOrStore(box.ID, newGuest(g.limits, g.memory.Account(string(box.ID))))
	return v.(*guest)
}

// enter counts a query in. It is not admitted when the box is unknown, asks too fast, has too many queries waiting, or no
// more memory.
func (g *guests) enter(box *policy.Box) *visit {
	who := g.of(box)
	v := &visit{box: box, guest: who}
	inFlight := who.inFlight.Add(1)
	v.admitted = box != nil && inFlight <= int64(g.limits.InFlight) && who.rate.Allow() && who.memory.Acquire(memory.DNS, queryCost)
	if v.admitted {
		v.held = queryCost
	}
	return v
}

func (v *visit) leave() {
	v.guest.inFlight.Add(-1)
	v.guest.memory.Release(memory.DNS, v.held)
}

// look counts an upstream lookup in, and reports whether the box may have one more under way; if so, it must be counted out.
// What the connections of one box wait for must not take every place that the boxes share.
func (w *guest) look() bool {
	if w.lookups.Add(1) <= w.mostLookups {
		return true
	}
	w.lookups.Add(-1)
	return false
}

// connect counts a TCP connection in and reports whether it may stay; if so, it must be counted out by disconnect.
func (g *guests) connect(box *policy.Box) (who *guest, ok bool) {
	who = g.of(box)
	if box == nil {
		return who, false
	}
	if who.conns.Add(1) <= int64(g.limits.TCPConns) && who.memory.Acquire(memory.DNS, connCost) {
		return who, true
	}
	who.conns.Add(-1)
	return who, false
}

func (w *guest) disconnect() {
	w.conns.Add(-1)
	w.memory.Release(memory.DNS, connCost)
}

func (g *guests) forget(box policy.BoxID) { g.known.Delete(box) }

// coalesced lets one event a second pass, which says how many it stands for.
type coalesced struct {
	every  *rate.Limiter
	unsaid atomic.Uint64
}

// add counts one, and reports whether to say so now and for how many.
func (c *coalesced) add() (count uint64, now bool) {
	c.unsaid.Add(1)
	if !c.every.Allow() {
		return 0, false
	}
	return c.unsaid.Swap(0), true
}

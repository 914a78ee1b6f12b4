// Package usage counts what each box uses of the proxy, enforces its limits, and coalesces refusals that a box can
// trigger in large numbers.
package usage

import (
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"

	"boxgate/audit"
	"boxgate/internal/memory"
	"boxgate/internal/ratelimit"
	"boxgate/policy"
	"boxgate/proxy/scrub"
)

// Config configures a [Table]. All fields are required.
type Config struct {
	Record   func(audit.Event) // records refusals; must not block
	Memory   *memory.Budget    // shared by all boxes
	Arrivals int               // connections that a box may make a second, sustained, in bursts of twice as many, unless it has its own limit
	Requests int               // HTTP requests of a box a second, likewise
}

// Table holds the usage of every box, keyed by box and never by anything a box sends. Create it with [New]. Safe for
// concurrent use.
type Table struct {
	cfg     Config
	unknown *Box
	known   sync.Map // policy.BoxID → *Box
}

// Box is the current usage of one box. Safe for concurrent use.
type Box struct {
	Arrivals      *ratelimit.Limiter // connections
	Requests      *ratelimit.Limiter // HTTP requests
	Logins        *rate.Limiter      // logins to servers on its behalf
	Memory        *memory.Account    // memory that the gateway uses for it
	Interceptions Count              // connections whose TLS is terminated
	Recodings     Count              // compressed responses that are scrubbed
	Streams       Count              // requests over HTTP/2: each buffers a window of its response
	Pipes         atomic.Int64       // pipes with bytes of its tunnels
	Refusals      Coalescer          // of connections
	Excess        Coalescer          // of requests beyond a limit
	Told          scrub.History      // secrets that its requests sent to each host

	limits *policy.LiveLimits // its own limits
}

// New returns an empty table.
func New(cfg Config) *Table {
	t := &Table{cfg: cfg}
	t.unknown = t.newBox(&policy.Box{})
	return t
}

func (t *Table) newBox(box *policy.Box) *Box {
	own := &box.Limits
	perSecond := func(n int, limit policy.Limit) *ratelimit.Limiter {
		return ratelimit.New(float64(n), 2*n, func() int64 { return own.Of(limit, 0) })
	}
	return &Box{
		limits:   own,
		Memory:   t.cfg.Memory.AccountOf(string(box.ID), func(all int64) int64 { return own.Of(policy.LimitMemory, all) }),
		Arrivals: perSecond(t.cfg.Arrivals, policy.LimitNewConnections), Requests: perSecond(t.cfg.Requests, policy.LimitRequests),
		Logins:   rate.NewLimiter(loginRate, loginBurst),
		Refusals: Coalescer{Record: t.cfg.Record}, Excess: Coalescer{Record: t.cfg.Record},
	}
}

// Rate of logins that a box may cause, after a burst. Each costs handshakes and, with PostgreSQL, a SCRAM proof with as
// many iterations as the server demands; the burst suffices for a connection pool that opens at startup.
const (
	loginRate  = rate.Limit(20)
	loginBurst = 100
)

// Limit returns the box's own limit of a resource, or all if it has none.
func (b *Box) Limit(limit policy.Limit, all int) int { return int(b.limits.Of(limit, int64(all))) }

// Of returns the usage of a box, creating it on first use. nil stands for all sources that are not boxes.
func (t *Table) Of(box *policy.Box) *Box {
	if box == nil {
		return t.unknown
	}
	if v, ok := t.known.Load(box.ID); ok {
		return v.(*Box)
	}
	v, _ := t.known.LoadOrStore(box.ID, t.newBox(box))
	return v.(*Box)
}

// Find returns the usage of a box if it has used anything, or nil.
func (t *Table) Find(box policy.BoxID) *Box {
	v, _ := t.known.Load(box)
	b, _ := v.(*Box)
	return b
}

// Has reports whether the table has counters for a box.
func (t *Table) Has(box policy.BoxID) bool {
	_, ok := t.known.Load(box)
	return ok
}

// Forget drops the counters of a box and records its pending refusals.
func (t *Table) Forget(box policy.BoxID) {
	if v, ok := t.known.LoadAndDelete(box); ok {
		v.(*Box).flush()
	}
	t.cfg.Memory.Forget(string(box))
}

// Flush records the pending refusals of all boxes.
func (t *Table) Flush() {
	t.unknown.flush()
	t.known.Range(func(_, v any) bool {
		v.(*Box).flush()
		return true
	})
}

func (b *Box) flush() {
	b.Refusals.Flush()
	b.Excess.Flush()
}

// Count is a number of resources in use. The zero value is 0.
type Count struct{ n atomic.Int64 }

// Enter adds one and reports whether the count is within limit; if not, the addition is reverted.
func (c *Count) Enter(limit int) bool {
	if c.n.Add(1) <= int64(limit) {
		return true
	}
	c.n.Add(-1)
	return false
}

// Leave subtracts one.
func (c *Count) Leave() { c.n.Add(-1) }

// Load returns the count.
func (c *Count) Load() int64 { return c.n.Load() }

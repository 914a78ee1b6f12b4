// Package usage counts what each box takes of the proxy, holds it against the limits, and tells of refusals that a box can
// provoke faster than anybody wants to read.
package usage

import (
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"

	"boxgate/audit"
	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/proxy/scrub"
)

// Config is what a [Table] needs. All of it is required.
type Config struct {
	Record   func(audit.Event) // takes refusals; never blocks
	Memory   *memory.Budget    // which boxes share
	Arrivals int               // connections that a box may make a second, sustained; twice as many at once
	Requests int               // HTTP requests of a box a second, likewise
}

// Table holds the usage of every box. Its keys are the gateway's boxes, never anything that a box sends. Only [New] makes
// one. Safe for concurrent use.
type Table struct {
	cfg     Config
	unknown *Box
	known   sync.Map // policy.BoxID → *Box
}

// Box is what one box takes now. Safe for concurrent use.
type Box struct {
	Arrivals      *rate.Limiter   // connections
	Requests      *rate.Limiter   // HTTP requests
	Memory        *memory.Account // what the gateway holds for it
	Interceptions Count           // connections whose TLS is terminated
	Recodings     Count           // compressed responses that are scrubbed
	Streams       Count           // requests over HTTP/2: each holds a window of its response
	Pipes         atomic.Int64    // pipes that hold bytes of its tunnels
	Refusals      Coalescer       // of connections
	Excess        Coalescer       // of requests beyond a limit
	Told          scrub.History   // secrets that its requests told each host
}

// New returns an empty table.
func New(cfg Config) *Table {
	t := &Table{cfg: cfg}
	t.unknown = t.newBox("")
	return t
}

func (t *Table) newBox(box policy.BoxID) *Box {
	return &Box{
		Memory:   t.cfg.Memory.Account(string(box)),
		Arrivals: perSecond(t.cfg.Arrivals), Requests: perSecond(t.cfg.Requests),
		Refusals: Coalescer{Record: t.cfg.Record}, Excess: Coalescer{Record: t.cfg.Record},
	}
}

// perSecond allows n a second, and twice as many at once.
func perSecond(n int) *rate.Limiter { return rate.NewLimiter(rate.Limit(n), 2*n) }

// Of returns the usage of a box, made at its first connection; nil stands for every source that is no box.
func (t *Table) Of(box *policy.Box) *Box {
	if box == nil {
		return t.unknown
	}
	if v, ok := t.known.Load(box.ID); ok {
		return v.(*Box)
	}
	v, _ := t.known.LoadOrStore(box.ID, t.newBox(box.ID))
	return v.(*Box)
}

// Knows reports whether anything is counted for a box.
func (t *Table) Knows(box policy.BoxID) bool {
	_, ok := t.known.Load(box)
	return ok
}

// Forget drops what is counted for a box and records the refusals not recorded yet.
func (t *Table) Forget(box policy.BoxID) {
	if v, ok := t.known.LoadAndDelete(box); ok {
		v.(*Box).flush()
	}
	t.cfg.Memory.Forget(string(box))
}

// Flush records the refusals of all boxes that are not recorded yet.
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

// tlsCost is what terminated TLS makes the gateway hold at most, in bytes: keys, a record each way, the longest handshake
// message, incomplete.
const tlsCost = 160 << 10

// Intercept counts one more connection whose TLS is terminated and reports whether there may be one; if so,
// [Box.EndIntercept] must follow.
func (b *Box) Intercept(limit int) bool {
	if !b.Memory.Acquire(memory.TLS, tlsCost) {
		return false
	}
	if b.Interceptions.Enter(limit) {
		return true
	}
	b.Memory.Release(memory.TLS, tlsCost)
	return false
}

// EndIntercept takes one interception out of the count.
func (b *Box) EndIntercept() {
	b.Interceptions.Leave()
	b.Memory.Release(memory.TLS, tlsCost)
}

// Count is how much of something a box has now. The zero value is none.
type Count struct{ n atomic.Int64 }

// Enter adds one and reports whether that is within limit; if not, it is taken back.
func (c *Count) Enter(limit int) bool {
	if c.n.Add(1) <= int64(limit) {
		return true
	}
	c.n.Add(-1)
	return false
}

// Leave takes one away.
func (c *Count) Leave() { c.n.Add(-1) }

// Load returns the count.
func (c *Count) Load() int64 { return c.n.Load() }

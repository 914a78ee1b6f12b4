package proxy

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"boxgate/audit"
	"boxgate/internal/memory"
	"boxgate/policy"
)

// usages counts what each box takes of the proxy. Its keys are the gateway's boxes, never anything that a box sends.
type usages struct {
	cfg     *Config
	unknown *usage   // stands for every source that is no box
	known   sync.Map // policy.BoxID → *usage
}

// usage is what one box takes now, apart from its open connections, which the liveTable counts.
type usage struct {
	arrivals      *rate.Limiter
	memory        *memory.Account
	interceptions atomic.Int64
	recodings     atomic.Int64 // compressed responses that are scrubbed
	told          scrubMemory
	streams       atomic.Int64 // requests over HTTP/2: each holds a window of its response
	requests      *rate.Limiter
	pipes         atomic.Int64 // through which bytes of its tunnels are on their way
	refusals      coalesced    // of connections
	excess        coalesced    // requests beyond what there may be
}

// use makes the table ready for a configuration whose defaults are set.
func (g *usages) use(cfg *Config) {
	g.cfg = cfg
	g.unknown = g.newUsage("")
}

func (g *usages) newUsage(box policy.BoxID) *usage {
	record := g.cfg.Audit.Record
	return &usage{
		memory:   g.cfg.Memory.Account(string(box)),
		arrivals: perSecond(g.cfg.MaxNewConns), requests: perSecond(g.cfg.MaxRequests),
		refusals: coalesced{record: record}, excess: coalesced{record: record},
	}
}

// perSecond allows n a second, and twice as many at once.
func perSecond(n int) *rate.Limiter { return rate.NewLimiter(rate.Limit(n), 2*n) }

// flush records what was not said yet.
func (g *usage) flush() {
	g.refusals.flush()
	g.excess.flush()
}

// of returns the counts of a box, made at its first connection.
func (g *usages) of(box *policy.Box) *usage {
	if box == nil {
		return g.unknown
	}
	if v, ok := g.known.Load(box.ID); ok {
		return v.(*usage)
	}
	v, _ := g.known.LoadOrStore(box.ID, g.newUsage(box.ID))
	return v.(*usage)
}

// forget drops what is counted for a box and records what was not said yet.
func (g *usages) forget(box policy.BoxID) {
	if v, ok := g.known.LoadAndDelete(box); ok {
		v.(*usage).flush()
	}
	g.cfg.Memory.Forget(string(box))
}

// flush records what was not said yet of any box.
func (g *usages) flush() {
	g.unknown.flush()
	g.known.Range(func(_, v any) bool {
		v.(*usage).flush()
		return true
	})
}

// intercept counts one more interception and reports whether there may be one; if so, release must follow.
func (g *usage) intercept(max int) bool {
	if !g.memory.Acquire(memory.TLS, tlsCost) {
		return false
	}
	if countIn(&g.interceptions, max) {
		return true
	}
	g.memory.Release(memory.TLS, tlsCost)
	return false
}

// countIn adds one to n and reports whether that is within max; if not, it takes it back.
func countIn(n *atomic.Int64, max int) bool {
	if n.Add(1) <= int64(max) {
		return true
	}
	n.Add(-1)
	return false
}

func (g *usage) release() {
	g.interceptions.Add(-1)
	g.memory.Release(memory.TLS, tlsCost)
}

// find sets the box that has the address, and its counts. A box removed meanwhile is unknown, and what CloseBox forgot
// of it stays forgotten.
func (c *conn) find(from netip.Addr) {
	boxes := c.p.cfg.Boxes
	c.box = boxes.BoxByAddr(from)
	c.usage = c.p.usages.of(c.box)
	if c.box != nil && boxes.BoxByAddr(from) != c.box {
		c.p.usages.forget(c.box.ID)
		c.box, c.usage = nil, c.p.usages.unknown
	}
}

// record hands on the decision. Refusals that a box can provoke as fast as it can connect are coalesced.
func (c *conn) record() {
	if c.usage != nil && (c.event.Reason == policy.ReasonLimit || c.event.Reason == policy.ReasonUnknownBox) {
		c.usage.refusals.add(c.event)
		return
	}
	c.p.cfg.Audit.Record(c.event)
}

// coalesceInterval is the least time between two events of one coalesced.
const coalesceInterval = time.Second

// coalesced records the first of many like events at once and then one each coalesceInterval, which says how many it stands
// for. Every event is counted in the end. Only record must be set.
type coalesced struct {
	record func(audit.Event) // never blocks

	mu     sync.Mutex
	timer  *time.Timer // runs while the latest record is younger than coalesceInterval
	latest audit.Event
	unsaid uint64 // events since the latest record
	mixed  bool   // they are not all about one destination
}

// add records ev, or keeps it until its time has come.
func (t *coalesced) add(ev audit.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unsaid > 0 && (ev.Name != t.latest.Name || ev.Addr != t.latest.Addr || ev.Port != t.latest.Port) {
		t.mixed = true
	}
	t.latest = ev
	t.unsaid++
	if t.timer == nil {
		t.sayLocked()
		t.timer = time.AfterFunc(coalesceInterval, t.due)
	}
}

// due records what came while the timer ran, and lets it run again if anything did.
func (t *coalesced) due() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer = nil; t.sayLocked() {
		t.timer = time.AfterFunc(coalesceInterval, t.due)
	}
}

// flush records what was not said yet and lets no timer run on.
func (t *coalesced) flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	t.sayLocked()
}

func (t *coalesced) sayLocked() bool {
	if t.unsaid == 0 {
		return false
	}
	ev := t.latest
	if t.unsaid > 1 {
		ev.Count = t.unsaid
	}
	if t.mixed {
		ev.Name, ev.Addr, ev.Port, ev.Rule = "", netip.Addr{}, 0, ""
		ev.Error = "refusals of several destinations, told by their number"
	}
	t.unsaid, t.mixed = 0, false
	t.record(ev)
	return true
}

// Package usage counts what each box uses of the proxy, enforces its limits, and coalesces refusals that a box can
// trigger in large numbers.
package usage

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"boxgate/audit"
	"boxgate/internal/memory"
	"boxgate/internal/ratelimit"
	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/proxy/har"
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

	Capture atomic.Pointer[har.Capture] // records its requests; nil: they are not recorded

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
		b := v.(*Box)
		b.flush()
		if c := b.Capture.Load(); c != nil {
			c.End(har.EndBox)
		}
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

const (
	// tlsCost is the most memory that terminated TLS uses, in bytes: keys (16 KiB); a record buffer, which grows when it
	// lacks space for another record (76 KiB); and a handshake message buffer, which doubles (112 KiB). The latter contains
	// a record that was read together with other content, a record that arrived on its own, and one more read.
	tlsCost = 208 << 10
	// It includes a ClientHello of this length, whose buffer may be twice as long.
	usualHello = 30 << 10
	// tlsIdle is the minimum memory of terminated TLS: keys and connection state.
	tlsIdle = 16 << 10
	// Limits of the data received from a client that crypto/tls buffers at a time: a record, a handshake message, and
	// records that were read with another one and may begin a message. It keeps the buffers, of up to twice the size, while
	// the connection is idle.
	longestMessage = 64 << 10
	mostAhead      = 2 * socket.LongestRecord
)

// Interception is a connection whose TLS is terminated. It may be used by one goroutine at a time. Methods of a nil
// Interception have no effect.
type Interception struct {
	box       *Box
	claim     memory.Claim
	reserved  int   // the memory reserved in use
	handshake int64 // bytes received by the end of the handshake
	released  int   // bytes released while idle
}

// Intercept counts one more connection whose TLS is terminated. It returns nil if the box has reached its own limit or,
// without one, the limit all, or if memory is short; otherwise [Interception.End] must follow. hello is the length of the
// ClientHello in bytes, or 0 if it has not been read.
func (b *Box) Intercept(all, hello int) *Interception {
	i := &Interception{box: b, reserved: tlsCost + 2*max(0, hello-usualHello)}
	i.claim.Open(b.Memory, memory.TLS)
	if !i.claim.Grow(i.reserved) {
		return nil
	}
	if b.Interceptions.Enter(b.Limit(policy.LimitInterceptions, all)) {
		return i
	}
	i.claim.Close()
	return nil
}

// Established records the end of the handshake. sent is the number of bytes received from the client so far.
func (i *Interception) Established(sent int64) { i.handshake = sent }

// Rest releases the memory that the connection does not use while it waits for the next request. sent is the total number of
// bytes received from the client, which must have sent nothing since the last request. [Interception.Wake] must follow before
// the next read.
func (i *Interception) Rest(sent int64) {
	if i == nil || i.released > 0 {
		return
	}
	uses := tlsIdle + 2*min(i.handshake, longestMessage) + 2*min(sent, socket.LongestRecord) + 2*min(sent, mostAhead)
	i.released = max(i.reserved-int(uses), 0)
	i.claim.Shrink(i.released)
}

// Wake reserves the memory released by Rest. It returns false if memory is short.
func (i *Interception) Wake() bool {
	if i == nil || i.released == 0 {
		return true
	}
	if !i.claim.Grow(i.released) {
		return false
	}
	i.released = 0
	return true
}

// End removes the connection from the count, and releases its memory.
func (i *Interception) End() {
	if i == nil {
		return
	}
	i.box.Interceptions.Leave()
	i.claim.Close()
}

// coalesceInterval is the minimum time between two events of one [Coalescer].
const coalesceInterval = time.Second

// Coalescer records the first of many similar events immediately, then one per coalesceInterval with the number it
// represents. Every event is counted eventually. Only Record must be set.
type Coalescer struct {
	Record func(audit.Event) // never blocks

	mu         sync.Mutex
	timer      *time.Timer // runs while the latest record is younger than coalesceInterval
	latest     audit.Event
	unrecorded uint64 // events not recorded yet
	mixed      bool   // the unrecorded events have different destinations
}

// Add records ev, now or with those coalesced when the interval ends.
func (t *Coalescer) Add(ev audit.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unrecorded > 0 && (ev.Name != t.latest.Name || ev.Addr != t.latest.Addr || ev.Port != t.latest.Port) {
		t.mixed = true
	}
	t.latest = ev
	t.unrecorded++
	if t.timer == nil {
		t.recordLocked()
		t.timer = time.AfterFunc(coalesceInterval, t.onTimer)
	}
}

// onTimer records the events that arrived while the timer ran, and restarts the timer if there were any.
func (t *Coalescer) onTimer() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer = nil; t.recordLocked() {
		t.timer = time.AfterFunc(coalesceInterval, t.onTimer)
	}
}

// Flush records the pending events and stops the timer.
func (t *Coalescer) Flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	t.recordLocked()
}

func (t *Coalescer) recordLocked() bool {
	if t.unrecorded == 0 {
		return false
	}
	ev := t.latest
	if t.unrecorded > 1 {
		ev.Count = t.unrecorded
	}
	if t.mixed {
		ev.Name, ev.Addr, ev.Port, ev.Rule = "", netip.Addr{}, 0, ""
		ev.Error = "refusals of several destinations, reported by count"
	}
	t.unrecorded, t.mixed = 0, false
	t.Record(ev)
	return true
}

// Room reports whether a user that has mine of a resource may have one more. open of at most total are in use, by sharers
// users. While more than a quarter is free, everyone gets more; the last quarter is reserved for users with few, so that a
// few heavy users cannot starve the rest.
func Room(mine, open, total, sharers int) bool {
	switch {
	case total <= 0: // no limit
		return true
	case open >= total:
		return false
	case open < total-total/4:
		return true
	}
	return mine < max(1, total/4/(sharers+1))
}

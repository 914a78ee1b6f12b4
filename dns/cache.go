package dns

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/internal/lru"
	"boxgate/policy/name"
)

const (
	// lookupTimeout bounds one upstream lookup, failover included. It is under the 5 s that resolv.conf clients wait.
	lookupTimeout = 4500 * time.Millisecond
	// failureTTL is how long a failed lookup is cached (RFC 9520, section 3.2).
	failureTTL = time.Second
	// entryOverhead is roughly the memory of a cached answer in addition to its records.
	entryOverhead = 512
)

// exchanger asks upstream servers. The message it returns answers the question with NOERROR or NXDOMAIN and is not
// truncated; everything else is an error. It must be safe for concurrent use and honour ctx.
type exchanger interface {
	exchange(ctx context.Context, name string, qtype uint16) (*mdns.Msg, error)
}

// exchange is the signature of exchanger's method.
type exchange func(ctx context.Context, name string, qtype uint16) (*mdns.Msg, error)

// errBusy is returned when too many lookups are in flight.
var errBusy = errors.New("too many DNS lookups are in flight")

// cache holds upstream answers for all boxes, and never has two lookups for the same question in flight. Its contents
// have not been checked against any policy.
type cache struct {
	upstream exchanger
	answers  *lru.Cache[cacheKey, *answer]
	slots    chan struct{} // a slot for each lookup in flight
	timeout  time.Duration // of a lookup; lookupTimeout

	mu      sync.Mutex
	flights map[cacheKey]*flight
}

// flight is a lookup in flight. All queries with the same question wait for it.
type flight struct {
	done   chan struct{} // closed at the end; created for the first waiter
	answer *answer       // set before done is closed; nil: no result, look it up again
}

type cacheKey struct {
	name  name.Name
	qtype uint16
}

func newCache(up exchanger, bytes, lookups int) *cache {
	return &cache{
		upstream: up,
		answers:  lru.New[cacheKey, *answer](bytes),
		slots:    make(chan struct{}, lookups),
		timeout:  lookupTimeout,
		flights:  map[cacheKey]*flight{},
	}
}

// answerFor returns the answer about n and qtype, from the cache while its TTL lasts, else from upstream, charged to
// use. A lookup in flight outlives the caller's ctx, because other queries may be waiting for it. A query that already
// waits for a flight (withFlight) gets the result of that flight.
func (c *cache) answerFor(ctx context.Context, use *usage, n name.Name, qtype uint16) (*answer, error) {
	k := cacheKey{n, qtype}
	for f := flightOf(ctx, k); ; f = nil {
		if f == nil {
			if a := c.lookupCached(k); a != nil {
				return a, a.err
			}
			var first bool
			if f, first = c.joinFlight(k); first {
				go func() { c.endFlight(k, f, c.lookupWithinLimit(use, k)) }()
			}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-f.done:
			a := f.answer
			if a != nil && (a.overLimit == nil || a.overLimit == use) { // otherwise another box reached its limit
				return a, a.err
			}
		}
	}
}

type flightKey struct{}

type awaitedFlight struct {
	key    cacheKey
	flight *flight
}

// withFlight returns a context for a query that waits for a flight returned by joinFlight.
func withFlight(ctx context.Context, k cacheKey, f *flight) context.Context {
	return context.WithValue(ctx, flightKey{}, awaitedFlight{k, f})
}

// flightOf returns the flight for k that the query waits for, or nil.
func flightOf(ctx context.Context, k cacheKey) *flight {
	if p, ok := ctx.Value(flightKey{}).(awaitedFlight); ok && p.key == k {
		return p.flight
	}
	return nil
}

// joinFlight returns the flight for k, and whether it is new. The caller has to end a new one.
func (c *cache) joinFlight(k cacheKey) (f *flight, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f = c.flights[k]; f == nil {
		f, first = &flight{}, true
		c.flights[k] = f
	}
	if f.done == nil {
		f.done = make(chan struct{})
	}
	return f, first
}

// startFlight starts a flight for k that the caller has to end. It returns nil if one is in flight.
func (c *cache) startFlight(k cacheKey) *flight {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flights[k] != nil {
		return nil
	}
	f := &flight{}
	c.flights[k] = f
	return f
}

// endFlight ends a flight.
func (c *cache) endFlight(k cacheKey, f *flight, a *answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.flights, k)
	f.answer = a
	if f.done != nil {
		close(f.done)
	}
}

// acquireSlot takes a slot for a lookup, and reports false if the box or the server has as many as allowed. The caller
// returns the slot with releaseSlot.
func (c *cache) acquireSlot(use *usage) bool {
	if !use.acquireLookup() {
		return false
	}
	select {
	case c.slots <- struct{}{}:
		return true
	default:
		use.lookups.Add(-1)
		return false
	}
}

func (c *cache) releaseSlot(use *usage) {
	<-c.slots
	use.lookups.Add(-1)
}

// lookupWithinLimit is lookup within the box's limit.
func (c *cache) lookupWithinLimit(use *usage, k cacheKey) *answer {
	if !use.acquireLookup() {
		return &answer{err: errBusy, overLimit: use}
	}
	defer use.lookups.Add(-1)
	return c.lookup(k)
}

func (c *cache) lookupCached(k cacheKey) *answer { return c.cachedAt(k, time.Now()) }

// cachedAt returns the answer that is valid at that time, or nil.
func (c *cache) cachedAt(k cacheKey, now time.Time) *answer {
	a, ok := c.answers.Get(k)
	if !ok || now.Sub(a.stored) >= a.life {
		return nil
	}
	return a
}

// lookup asks upstream and caches the answer or the failure. It runs at most once per key at a time.
func (c *cache) lookup(k cacheKey) *answer {
	if a := c.lookupCached(k); a != nil {
		return a // another lookup ended just before this one began
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	default:
		return &answer{err: errBusy}
	}
	return c.lookupThrough(k, time.Now().Add(c.timeout), c.upstream.exchange)
}

// lookupThrough asks upstream through exchange, and caches the answer or the failure.
func (c *cache) lookupThrough(k cacheKey, deadline time.Time, exchange exchange) *answer {
	a, size, err := lookupUpstream(k, deadline, exchange)
	if err != nil {
		a, size = failure(err), 0
	}
	c.storeAnswer(k, a, size)
	return a
}

// failure returns the answer to cache for a failed lookup.
func failure(err error) *answer { return &answer{err: err, stored: time.Now(), life: failureTTL} }

// storeAnswer caches an answer whose message had size bytes, unless its life is 0.
func (c *cache) storeAnswer(k cacheKey, a *answer, size int) {
	if a.life > 0 {
		c.answers.Put(k, a, 2*size+len(k.name.String())+entryOverhead) // as records, and packed
	}
}

// lookupUpstream turns a panic into an error, because it runs on its own goroutine.
func lookupUpstream(k cacheKey, deadline time.Time, exchange exchange) (a *answer, size int, err error) {
	defer func() {
		if p := recover(); p != nil {
			a, err = nil, fmt.Errorf("panic in a DNS lookup: %v", p)
		}
	}()
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	m, err := exchange(ctx, k.name.String()+".", k.qtype)
	if err != nil {
		return nil, 0, err
	}
	a, err = digest(m, k.name, k.qtype, time.Now())
	return a, m.Len(), err
}

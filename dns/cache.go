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
	up      exchanger
	answers *lru.Cache[cacheKey, *answer]
	lookups chan struct{} // a slot for each lookup in flight
	timeout time.Duration // of a lookup; lookupTimeout

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
		up:      up,
		answers: lru.New[cacheKey, *answer](bytes),
		lookups: make(chan struct{}, lookups),
		timeout: lookupTimeout,
		flights: map[cacheKey]*flight{},
	}
}

// ask returns the answer about n and qtype, from the cache while its TTL lasts, else from upstream, charged to use. A
// lookup in flight outlives the caller's ctx, because other queries may be waiting for it. A query that already waits
// for a flight (onFlight) gets the result of that flight.
func (c *cache) ask(ctx context.Context, use *usage, n name.Name, qtype uint16) (*answer, error) {
	k := cacheKey{n, qtype}
	for f := flightOf(ctx, k); ; f = nil {
		if f == nil {
			if a := c.fresh(k); a != nil {
				return a, a.err
			}
			var first bool
			if f, first = c.join(k); first {
				go func() { c.land(k, f, c.lookupFor(use, k)) }()
			}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-f.done:
			a := f.answer
			if a != nil && (a.refused == nil || a.refused == use) { // otherwise another box reached its limit
				return a, a.err
			}
		}
	}
}

type flightKey struct{}

type passenger struct {
	key    cacheKey
	flight *flight
}

// onFlight returns a context for a query that waits for a flight returned by join.
func onFlight(ctx context.Context, k cacheKey, f *flight) context.Context {
	return context.WithValue(ctx, flightKey{}, passenger{k, f})
}

// flightOf returns the flight for k that the query waits for, or nil.
func flightOf(ctx context.Context, k cacheKey) *flight {
	if p, ok := ctx.Value(flightKey{}).(passenger); ok && p.key == k {
		return p.flight
	}
	return nil
}

// join returns the flight for k, and whether it is new. The caller has to land a new one.
func (c *cache) join(k cacheKey) (f *flight, first bool) {
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

// board starts a flight for k that the caller has to land. It returns nil if one is in flight.
func (c *cache) board(k cacheKey) *flight {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flights[k] != nil {
		return nil
	}
	f := &flight{}
	c.flights[k] = f
	return f
}

// land ends a flight.
func (c *cache) land(k cacheKey, f *flight, a *answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.flights, k)
	f.answer = a
	if f.done != nil {
		close(f.done)
	}
}

// reserve takes a slot for a lookup, and reports false if the box or the server has as many as allowed. The caller
// returns the slot with release.
func (c *cache) reserve(use *usage) bool {
	if !use.look() {
		return false
	}
	select {
	case c.lookups <- struct{}{}:
		return true
	default:
		use.lookups.Add(-1)
		return false
	}
}

func (c *cache) release(use *usage) {
	<-c.lookups
	use.lookups.Add(-1)
}

// lookupFor is lookup within the box's limit.
func (c *cache) lookupFor(use *usage, k cacheKey) *answer {
	if !use.look() {
		return &answer{err: errBusy, refused: use}
	}
	defer use.lookups.Add(-1)
	return c.lookup(k)
}

func (c *cache) fresh(k cacheKey) *answer { return c.freshAt(k, time.Now()) }

// freshAt returns the answer that is valid at that time, or nil.
func (c *cache) freshAt(k cacheKey, now time.Time) *answer {
	a, ok := c.answers.Get(k)
	if !ok || now.Sub(a.stored) >= a.life {
		return nil
	}
	return a
}

// lookup asks upstream and caches the answer or the failure. It runs at most once per key at a time.
func (c *cache) lookup(k cacheKey) *answer {
	if a := c.fresh(k); a != nil {
		return a // another lookup ended just before this one began
	}
	select {
	case c.lookups <- struct{}{}:
		defer func() { <-c.lookups }()
	default:
		return &answer{err: errBusy}
	}
	return c.lookupBy(k, time.Now().Add(c.timeout), c.up.exchange)
}

// lookupBy asks upstream through exchange, and caches the answer or the failure.
func (c *cache) lookupBy(k cacheKey, deadline time.Time, exchange exchange) *answer {
	a, size, err := lookupUpstream(k, deadline, exchange)
	if err != nil {
		a, size = failure(err), 0
	}
	c.keep(k, a, size)
	return a
}

// failure returns the answer to cache for a failed lookup.
func failure(err error) *answer { return &answer{err: err, stored: time.Now(), life: failureTTL} }

// keep caches an answer whose message had size bytes, unless its life is 0.
func (c *cache) keep(k cacheKey, a *answer, size int) {
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

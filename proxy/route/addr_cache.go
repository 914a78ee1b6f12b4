package route

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

const (
	addrsFresh    = 5 * time.Second // lookups of the hosts are not repeated within this time
	addrsKept     = time.Hour       // how long an address that has disappeared from the answers is kept
	maxAddrs      = 8192            // addresses cached for a list of names
	maxAddrLists  = 16              // lists cached for a box
	maxLookups    = 16              // names looked up at a time
	lookupTimeout = 3 * time.Second // for all names
)

// addrCaches caches the addresses of a box's hosts with rules, per list of names: the hosts with rules can differ by
// port. The zero value is empty.
type addrCaches struct {
	mu    sync.Mutex   // never locked during a DNS lookup
	lists []*addrCache // least recently used first
}

// addrCache caches the addresses that a list of hosts has, or had within the last hour: a server may return only some
// of a host's addresses in each answer.
type addrCache struct {
	names []name.Name
	sem   chan struct{} // semaphore of the goroutine that looks the names up

	// Guarded by the mu of addrCaches.
	asked time.Time // last lookup; zero if it was incomplete
	whole time.Time // last time every name was answered
	seen  map[netip.Addr]time.Time
}

// contains reports whether a may be an address of one of the names.
func (c *addrCaches) contains(ctx context.Context, from Resolver, box *policy.Box, names []name.Name, a netip.Addr, stale bool) bool {
	at := c.listFor(names)
	complete := c.refresh(ctx, at, from, box)
	c.mu.Lock()
	defer c.mu.Unlock()
	known := complete || stale && !at.whole.IsZero() && time.Since(at.whole) < addrsKept
	if !known {
		return true
	}
	_, found := at.seen[a]
	return found
}

func (c *addrCaches) listFor(names []name.Name) *addrCache {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := &addrCache{names: names, sem: make(chan struct{}, 1), seen: map[netip.Addr]time.Time{}}
	if i := slices.IndexFunc(c.lists, func(o *addrCache) bool { return slices.Equal(o.names, names) }); i >= 0 {
		at = c.lists[i]
		c.lists = slices.Delete(c.lists, i, i+1)
	} else if len(c.lists) == maxAddrLists {
		c.lists = slices.Delete(c.lists, 0, 1)
	}
	c.lists = append(c.lists, at)
	return at
}

// expire forces new lookups.
func (c *addrCaches) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.lists {
		at.asked = time.Time{}
	}
}

func (c *addrCaches) fresh(at *addrCache) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(at.asked) <= addrsFresh
}

// refresh looks the names up, unless that was just done, and reports whether all were answered.
func (c *addrCaches) refresh(ctx context.Context, at *addrCache, from Resolver, box *policy.Box) (complete bool) {
	if c.fresh(at) {
		return true
	}
	select {
	case at.sem <- struct{}{}:
		defer func() { <-at.sem }()
	case <-ctx.Done():
		return false
	}
	if c.fresh(at) {
		return true // another goroutine did
	}
	found, complete := lookupAll(ctx, from, box, at.names)
	c.mu.Lock()
	defer c.mu.Unlock()
	at.update(found, complete)
	return complete
}

// update records the addresses found.
func (c *addrCache) update(found []netip.Addr, complete bool) {
	now := time.Now()
	c.asked = time.Time{}
	for a, when := range c.seen {
		if now.Sub(when) > addrsKept || len(c.seen) > maxAddrs {
			delete(c.seen, a)
		}
	}
	for _, a := range found {
		c.seen[name.Untranslated(a)] = now
	}
	if complete {
		c.asked, c.whole = now, now
	}
}

// lookupAll looks up the addresses of all names, in both families. A name that the policy denies or that does not exist has
// no addresses.
func lookupAll(ctx context.Context, from Resolver, box *policy.Box, names []name.Name) (found []netip.Addr, complete bool) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var (
		mu       sync.Mutex
		all      sync.WaitGroup
		turn     = make(chan struct{}, maxLookups)
		panicked any
	)
	complete = true
	for _, n := range names {
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			addrs, fault, err := lookup(ctx, from, box, n)
			mu.Lock()
			defer mu.Unlock()
			found = append(found, addrs...)
			complete = complete && (err == nil || hasNoAddrs(err))
			if fault != nil {
				panicked = fault
			}
		})
	}
	all.Wait()
	if panicked != nil {
		panic(panicked) // it closes the connection that needs the lookup
	}
	return found, complete
}

// lookup looks up one name. It returns a panic as a value, because a panic in its goroutine would end the gateway.
func lookup(ctx context.Context, from Resolver, box *policy.Box, n name.Name) (addrs []netip.Addr, panicked any, err error) {
	defer func() { panicked = recover() }()
	addrs, err = from.LookupBoth(ctx, box, n)
	return addrs, nil, err
}

// hasNoAddrs reports whether a failed lookup means that the name has no addresses.
func hasNoAddrs(err error) bool {
	var missing interface{ NotFound() bool }
	var denied *policy.DeniedError
	return errors.As(err, &missing) && missing.NotFound() || errors.As(err, &denied)
}

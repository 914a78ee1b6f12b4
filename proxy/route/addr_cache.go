package route

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"boxgate/policy"
)

const (
	addrsFresh    = 5 * time.Second // how long the hosts' addresses are not asked for again
	addrsKept     = time.Hour       // how long an address is remembered that an answer no longer holds
	maxAddrs      = 8192            // addresses remembered for a list of names
	maxAddrLists  = 16              // lists remembered for a box
	maxLookups    = 16              // names asked for at a time
	lookupTimeout = 3 * time.Second // for all names
)

// addrCaches are the addresses of the hosts with rules of one box, a cache for each list of names: hosts may have rules on
// one port that they lack on another. The zero value is empty.
type addrCaches struct {
	mu    sync.Mutex   // never held during a DNS lookup
	lists []*addrCache // least recently used first
}

// addrCache holds the addresses that a list of hosts has, or had within the last hour: a server may answer with some of a
// host's addresses at a time.
type addrCache struct {
	names []policy.Name
	turn  chan struct{} // holds one while somebody asks

	// Guarded by the mu of addrCaches.
	asked time.Time // zero if an answer is missing
	whole time.Time // when every name was answered last
	seen  map[netip.Addr]time.Time
}

// contains reports whether a may be an address of one of the names.
func (c *addrCaches) contains(ctx context.Context, from Resolver, box *policy.Box, names []policy.Name, a netip.Addr, stale bool) bool {
	at := c.of(names)
	complete := c.refresh(ctx, at, from, box)
	c.mu.Lock()
	defer c.mu.Unlock()
	known := complete || stale && !at.whole.IsZero() && time.Since(at.whole) < addrsKept
	if !known {
		return true
	}
	_, held := at.seen[a]
	return held
}

func (c *addrCaches) of(names []policy.Name) *addrCache {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := &addrCache{names: names, turn: make(chan struct{}, 1), seen: map[netip.Addr]time.Time{}}
	if i := slices.IndexFunc(c.lists, func(o *addrCache) bool { return slices.Equal(o.names, names) }); i >= 0 {
		at = c.lists[i]
		c.lists = slices.Delete(c.lists, i, i+1)
	} else if len(c.lists) == maxAddrLists {
		c.lists = slices.Delete(c.lists, 0, 1)
	}
	c.lists = append(c.lists, at)
	return at
}

// expire makes everything be asked for again.
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

// refresh asks for the names, unless that was done just now, and reports whether all were answered.
func (c *addrCaches) refresh(ctx context.Context, at *addrCache, from Resolver, box *policy.Box) (complete bool) {
	if c.fresh(at) {
		return true
	}
	select {
	case at.turn <- struct{}{}:
		defer func() { <-at.turn }()
	case <-ctx.Done():
		return false
	}
	if c.fresh(at) {
		return true // somebody else did
	}
	found, complete := lookupAll(ctx, from, box, at.names)
	c.mu.Lock()
	defer c.mu.Unlock()
	at.note(found, complete)
	return complete
}

// note takes in what was found.
func (c *addrCache) note(found []netip.Addr, complete bool) {
	now := time.Now()
	c.asked = time.Time{}
	for a, when := range c.seen {
		if now.Sub(when) > addrsKept || len(c.seen) > maxAddrs {
			delete(c.seen, a)
		}
	}
	for _, a := range found {
		c.seen[policy.Untranslated(a)] = now
	}
	if complete {
		c.asked, c.whole = now, now
	}
}

// lookupAll asks for the addresses of all names, of both families. Those that the policy denies, and those that do not
// exist, have none.
func lookupAll(ctx context.Context, from Resolver, box *policy.Box, names []policy.Name) (found []netip.Addr, complete bool) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var (
		mu   sync.Mutex
		all  sync.WaitGroup
		turn = make(chan struct{}, maxLookups)
	)
	complete = true
	for _, n := range names {
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			addrs, err := from.LookupBoth(ctx, box, n)
			mu.Lock()
			defer mu.Unlock()
			found = append(found, addrs...)
			complete = complete && (err == nil || hasNone(err))
		})
	}
	all.Wait()
	return found, complete
}

// hasNone reports whether a failed lookup says that the name has no address to be had.
func hasNone(err error) bool {
	var missing interface{ NotFound() bool }
	var denied *policy.DeniedError
	return errors.As(err, &missing) && missing.NotFound() || errors.As(err, &denied)
}

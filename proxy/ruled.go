package proxy

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"boxgate/policy"
)

// This file knows where the hosts are whose requests are judged, so that what gives another name, or none, does not pass
// the interceptor by.

const (
	homesFresh    = 5 * time.Second       // how long the hosts' addresses are not asked for again
	homesKept     = time.Hour             // how long an address is remembered that an answer no longer holds
	homesMost     = 8192                  // addresses remembered for a list of names
	homesLists    = 16                    // lists remembered for a box
	homesLookups  = 16                    // names asked for at a time
	homesTimeout  = 3 * time.Second       // for all names
	recheckLookup = 60 * time.Millisecond // the same while a change of the policy waits
)

// ruled reports whether an address may be that of a host whose requests are judged on the port: every host is one, the box
// was told so, or the gateway finds it there itself. Hosts that a wildcard covers are known by what the box was told alone.
// A name that cannot be looked up now may have any address; but what was found in the last hour is enough where stale
// says so.
func (p *Proxy) ruled(ctx context.Context, pol *policy.Compiled, box *policy.Box, to netip.AddrPort, stale bool) bool {
	if !to.Addr().IsValid() {
		return false
	}
	if pol.RulesEveryHost(to.Port()) {
		return true
	}
	at := policy.Untranslated(to.Addr())
	told := append(p.cfg.Resolver.GrantedNames(box.ID, at), p.cfg.Resolver.GrantedNames(box.ID, to.Addr())...)
	if slices.ContainsFunc(told, func(n policy.Name) bool { return pol.Intercepts(n, to.Port()) }) {
		return true
	}
	names := pol.RuledNames(to.Port())
	return len(names) > 0 && p.usages.of(box).homes.hold(ctx, p.cfg.Resolver, box, names, at, stale)
}

// owns returns the question whether a name has an address: the box was told so and may still believe it, or the gateway
// finds it there itself.
func (p *Proxy) owns(box *policy.Box) grants {
	return func(id policy.BoxID, n policy.Name, a netip.Addr) bool {
		if p.cfg.Resolver.Granted(id, n, a) {
			return true
		}
		ctx, cancel := context.WithTimeout(p.base, recheckLookup)
		defer cancel()
		found, _ := lookupAll(ctx, p.cfg.Resolver, box, []policy.Name{n})
		return slices.ContainsFunc(found, func(f netip.Addr) bool { return f.Unmap() == a.Unmap() })
	}
}

// homes are the addresses of the hosts with rules of one box: those of one port have rules that others have not. The zero
// value is empty.
type homes struct {
	mu    sync.Mutex // never held while somebody waits for DNS
	lists []*home    // the one used last at the end
}

// home is where the hosts of one list are, and were in the last hour: servers that answer with a part of their addresses
// in turn have them all.
type home struct {
	names []policy.Name
	turn  chan struct{} // holds one while somebody asks

	// Guarded by the mu of homes.
	asked time.Time // zero if an answer is missing
	whole time.Time // when every name was answered last
	seen  map[netip.Addr]time.Time
}

// hold reports whether a may be an address of one of the names.
func (h *homes) hold(ctx context.Context, from Resolver, box *policy.Box, names []policy.Name, a netip.Addr, stale bool) bool {
	at := h.of(names)
	complete := h.refresh(ctx, at, from, box)
	h.mu.Lock()
	defer h.mu.Unlock()
	known := complete || stale && !at.whole.IsZero() && time.Since(at.whole) < homesKept
	if !known {
		return true
	}
	_, held := at.seen[a]
	return held
}

func (h *homes) of(names []policy.Name) *home {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := &home{names: names, turn: make(chan struct{}, 1), seen: map[netip.Addr]time.Time{}}
	if i := slices.IndexFunc(h.lists, func(o *home) bool { return slices.Equal(o.names, names) }); i >= 0 {
		at = h.lists[i]
		h.lists = slices.Delete(h.lists, i, i+1)
	} else if len(h.lists) == homesLists {
		h.lists = slices.Delete(h.lists, 0, 1)
	}
	h.lists = append(h.lists, at)
	return at
}

func (h *homes) fresh(at *home) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(at.asked) <= homesFresh
}

// refresh asks for the names, unless that was done just now, and reports whether all were answered.
func (h *homes) refresh(ctx context.Context, at *home, from Resolver, box *policy.Box) (complete bool) {
	if h.fresh(at) {
		return true
	}
	select {
	case at.turn <- struct{}{}:
		defer func() { <-at.turn }()
	case <-ctx.Done():
		return false
	}
	if h.fresh(at) {
		return true // somebody else did
	}
	found, complete := lookupAll(ctx, from, box, at.names)
	h.mu.Lock()
	defer h.mu.Unlock()
	at.note(found, complete)
	return complete
}

// note takes in what was found.
func (h *home) note(found []netip.Addr, complete bool) {
	now := time.Now()
	h.asked = time.Time{}
	for a, when := range h.seen {
		if now.Sub(when) > homesKept || len(h.seen) > homesMost {
			delete(h.seen, a)
		}
	}
	for _, a := range found {
		h.seen[policy.Untranslated(a)] = now
	}
	if complete {
		h.asked, h.whole = now, now
	}
}

// lookupAll asks for the addresses of all names, of both families. Those that the policy denies, and those that do not
// exist, have none.
func lookupAll(ctx context.Context, from Resolver, box *policy.Box, names []policy.Name) (found []netip.Addr, complete bool) {
	ctx, cancel := context.WithTimeout(ctx, homesTimeout)
	defer cancel()
	var (
		mu   sync.Mutex
		all  sync.WaitGroup
		turn = make(chan struct{}, homesLookups)
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

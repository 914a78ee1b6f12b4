package host

import (
	"net/netip"
	"sync"

	"boxgate/policy"
)

// registry finds the box behind a source address. It holds the boxes whose network is in force: a box is added after
// its interface is closed and before its first process starts, and removed when its interface is gone. The zero value
// is empty: every address is unknown. Safe for concurrent use.
type registry struct {
	mu     sync.RWMutex
	byAddr map[netip.Addr]*policy.Box
}

// BoxByAddr returns the box with that address, or nil.
func (r *registry) BoxByAddr(a netip.Addr) *policy.Box {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byAddr[a.Unmap().WithZone("")]
}

// add makes the box known by both its addresses.
func (r *registry) add(b *policy.Box) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byAddr == nil {
		r.byAddr = map[netip.Addr]*policy.Box{}
	}
	for _, a := range []netip.Addr{b.V4, b.V6} {
		if a.IsValid() {
			r.byAddr[a] = b
		}
	}
}

// remove forgets the box.
func (r *registry) remove(b *policy.Box) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byAddr, b.V4)
	delete(r.byAddr, b.V6)
}

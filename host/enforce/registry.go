package enforce

import (
	"net/netip"
	"sync"

	"boxgate/policy"
)

// Registry finds the box behind a source address, for DNS and the proxy. It holds the boxes that have a network: a box is
// added once its interface is there, closed, and removed when the interface is gone. The zero value is empty: every
// address is unknown. Safe for concurrent use.
type Registry struct {
	mu     sync.RWMutex
	byAddr map[netip.Addr]*policy.Box
}

// BoxByAddr returns the box with that address, or nil.
func (r *Registry) BoxByAddr(a netip.Addr) *policy.Box {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byAddr[a.Unmap().WithZone("")]
}

// add makes the box known by both its addresses.
func (r *Registry) add(b *policy.Box) {
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
func (r *Registry) remove(b *policy.Box) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byAddr, b.V4)
	delete(r.byAddr, b.V6)
}

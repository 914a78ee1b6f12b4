package enforce

import (
	"net/netip"
	"sync"

	"boxgate/policy"
)

// Registry maps source addresses to boxes, for DNS and the proxy. A box is added once it has its closed interface, and
// removed once the interface is gone. The zero value is empty. Safe for concurrent use.
type Registry struct {
	mu     sync.RWMutex
	byAddr map[netip.Addr]*policy.Box
}

// BoxByAddr returns the box with an address, or nil.
func (r *Registry) BoxByAddr(a netip.Addr) *policy.Box {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byAddr[a.Unmap().WithZone("")]
}

// add adds the box under both its addresses.
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

// remove removes the box.
func (r *Registry) remove(b *policy.Box) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byAddr, b.V4)
	delete(r.byAddr, b.V6)
}

package proxy

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"boxgate/policy"
	"boxgate/proxy/route"
)

// boxes finds boxes by their address. Safe for concurrent use; the zero value is empty.
type boxes struct {
	mu  sync.Mutex
	all map[netip.Addr]*policy.Box
}

func (b *boxes) add(box *policy.Box) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = map[netip.Addr]*policy.Box{}
	}
	b.all[box.V4] = box
}

func (b *boxes) BoxByAddr(a netip.Addr) *policy.Box {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all[a]
}

// changing is a resolver that a test may replace at any time.
type changing struct {
	now atomic.Pointer[route.Resolver]
}

func (c *changing) set(r route.Resolver) { c.now.Store(&r) }

func (c *changing) Lookup(ctx context.Context, b *policy.Box, n policy.Name) ([]netip.Addr, error) {
	return (*c.now.Load()).Lookup(ctx, b, n)
}

func (c *changing) LookupBoth(ctx context.Context, b *policy.Box, n policy.Name) ([]netip.Addr, error) {
	return (*c.now.Load()).LookupBoth(ctx, b, n)
}

func (c *changing) Granted(id policy.BoxID, n policy.Name, a netip.Addr) bool {
	return (*c.now.Load()).Granted(id, n, a)
}

func (c *changing) GrantedNames(id policy.BoxID, a netip.Addr) []policy.Name {
	return (*c.now.Load()).GrantedNames(id, a)
}

// names is the resolver of a rig. Safe for concurrent use.
type names struct {
	mu      sync.Mutex
	answers map[string][]netip.Addr
	grants  map[string][]netip.Addr // what the box was told
	others  []netip.Addr            // the answer for all other names; none: they do not exist
}

func (n *names) set(name string, addrs ...netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.answers == nil {
		n.answers = map[string][]netip.Addr{}
	}
	n.answers[name] = addrs
}

// setOthers gives every name without an answer of its own these addresses.
func (n *names) setOthers(addrs ...netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.others = addrs
}

func (n *names) grant(name string, addrs ...netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.grants == nil {
		n.grants = map[string][]netip.Addr{}
	}
	n.grants[name] = addrs
}

func (n *names) Lookup(_ context.Context, _ *policy.Box, name policy.Name) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a, ok := n.answers[name.String()]; ok {
		return a, nil
	}
	if n.others != nil {
		return n.others, nil
	}
	return nil, errors.New("no such name")
}

func (n *names) LookupBoth(ctx context.Context, b *policy.Box, name policy.Name) ([]netip.Addr, error) {
	return n.Lookup(ctx, b, name)
}

func (n *names) Granted(_ policy.BoxID, name policy.Name, a netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.grants[name.String()], a)
}

func (n *names) GrantedNames(_ policy.BoxID, a netip.Addr) []policy.Name {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []policy.Name
	for name, addrs := range n.grants {
		if parsed, err := policy.ParseName(name); err == nil && slices.Contains(addrs, a) {
			out = append(out, parsed)
		}
	}
	return out
}

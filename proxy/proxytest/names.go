package proxytest

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/route"
)

// Boxes finds boxes by their address. Safe for concurrent use; the zero value is empty.
type Boxes struct {
	mu  sync.Mutex
	all map[netip.Addr]*policy.Box
}

// Add adds a box under its IPv4 address.
func (b *Boxes) Add(box *policy.Box) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = map[netip.Addr]*policy.Box{}
	}
	b.all[box.V4] = box
}

// BoxByAddr implements [proxy.Boxes].
func (b *Boxes) BoxByAddr(a netip.Addr) *policy.Box {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all[a]
}

// Switch is a resolver that a test may replace at any time.
type Switch struct {
	now atomic.Pointer[route.Resolver]
}

// Set replaces the resolver.
func (c *Switch) Set(r route.Resolver) { c.now.Store(&r) }

// Lookup implements [route.Resolver].
func (c *Switch) Lookup(ctx context.Context, b *policy.Box, n name.Name) ([]netip.Addr, error) {
	return (*c.now.Load()).Lookup(ctx, b, n)
}

// LookupBoth implements [route.Resolver].
func (c *Switch) LookupBoth(ctx context.Context, b *policy.Box, n name.Name) ([]netip.Addr, error) {
	return (*c.now.Load()).LookupBoth(ctx, b, n)
}

// Granted implements [route.Resolver].
func (c *Switch) Granted(id policy.BoxID, n name.Name, a netip.Addr) bool {
	return (*c.now.Load()).Granted(id, n, a)
}

// RetainGrant implements [route.Resolver].
func (c *Switch) RetainGrant(id policy.BoxID, n name.Name, a netip.Addr) (release func()) {
	return (*c.now.Load()).RetainGrant(id, n, a)
}

// GrantedNames implements [route.Resolver].
func (c *Switch) GrantedNames(id policy.BoxID, a netip.Addr) []name.Name {
	return (*c.now.Load()).GrantedNames(id, a)
}

// Names is the resolver of a rig. Safe for concurrent use.
type Names struct {
	mu      sync.Mutex
	answers map[string][]netip.Addr
	grants  map[string][]netip.Addr // addresses that the box has received
	held    map[string]int          // connections that hold a grant, by name
	others  []netip.Addr            // the answer for all other names; if nil, they do not exist
}

// Set sets the addresses of a name. Without addrs, the name has no addresses.
func (n *Names) Set(name string, addrs ...netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.answers == nil {
		n.answers = map[string][]netip.Addr{}
	}
	n.answers[name] = addrs
}

// SetOthers sets the addresses of all names without an answer.
func (n *Names) SetOthers(addrs ...netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.others = addrs
}

// Forget drops all answers and grants.
func (n *Names) Forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answers, n.grants = nil, nil
}

// Grant records that the box has received these addresses for a name.
func (n *Names) Grant(name string, addrs ...netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.grants == nil {
		n.grants = map[string][]netip.Addr{}
	}
	n.grants[name] = addrs
}

// Lookup implements [route.Resolver].
func (n *Names) Lookup(_ context.Context, _ *policy.Box, name name.Name) ([]netip.Addr, error) {
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

// LookupBoth implements [route.Resolver].
func (n *Names) LookupBoth(ctx context.Context, b *policy.Box, name name.Name) ([]netip.Addr, error) {
	return n.Lookup(ctx, b, name)
}

// Granted implements [route.Resolver].
func (n *Names) Granted(_ policy.BoxID, name name.Name, a netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.grants[name.String()], a)
}

// RetainGrant implements [route.Resolver]. Grants of a rig do not expire, so it only counts.
func (n *Names) RetainGrant(_ policy.BoxID, name name.Name, a netip.Addr) (release func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Contains(n.grants[name.String()], a) {
		return nil
	}
	if n.held == nil {
		n.held = map[string]int{}
	}
	n.held[name.String()]++
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.held[name.String()]--
	}
}

// Held returns the number of connections that hold a grant for a name.
func (n *Names) Held(name string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.held[name]
}

// GrantedNames implements [route.Resolver].
func (n *Names) GrantedNames(_ policy.BoxID, a netip.Addr) []name.Name {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []name.Name
	for host, addrs := range n.grants {
		if parsed, err := name.Parse(host); err == nil && slices.Contains(addrs, a) {
			out = append(out, parsed)
		}
	}
	return out
}

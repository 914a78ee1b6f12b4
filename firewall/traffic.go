package firewall

import (
	"context"
	"fmt"
	"net/netip"

	"boxgate/firewall/flow"
	"boxgate/policy"
)

// Passed is what has passed in a connection.
type Passed = flow.Passed

// Traffic returns the open connections of the boxes, those to the gateway included, with what has passed in each. DNS is left
// out.
func (f *Firewall) Traffic(ctx context.Context) (map[policy.BoxID]map[Flow]Passed, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	found := map[policy.BoxID]map[Flow]Passed{}
	err := f.flows.Traffic(func(seen Flow, passed Passed) {
		id, ok := f.boxAt(seen.Src.Addr())
		if !ok {
			return
		}
		if found[id] == nil {
			found[id] = map[Flow]Passed{}
		}
		found[id][seen] = passed
	})
	if err != nil {
		return nil, fmt.Errorf("firewall: %w", err)
	}
	return found, nil
}

// boxAt returns the box that has an address. The table of connections is read without holding mu, since that takes time in
// proportion to its size.
func (f *Firewall) boxAt(a netip.Addr) (id policy.BoxID, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.boxes.byAddr[a]
	if b == nil {
		return "", false
	}
	return b.Box, true
}

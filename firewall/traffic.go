package firewall

import (
	"context"
	"fmt"
	"net/netip"

	"boxgate/firewall/flow"
	"boxgate/firewall/link"
	"boxgate/firewall/network"
	"boxgate/policy"
)

// Traffic counts the traffic of a connection.
type Traffic = flow.Traffic

// Traffic returns the open connections of the boxes, including those to the gateway, with the traffic of each. DNS is left
// out.
func (f *Firewall) Traffic(ctx context.Context) (map[policy.BoxID]map[Flow]Traffic, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	boxes := f.boxesByAddr()
	found := map[policy.BoxID]map[Flow]Traffic{}
	err := f.flows.Traffic(func(seen Flow, passed Traffic) {
		id, ok := boxes[seen.Src.Addr()]
		if !ok {
			return
		}
		if found[id] == nil {
			found[id] = map[Flow]Traffic{}
		}
		found[id][seen] = passed
	})
	if err != nil {
		return nil, fmt.Errorf("firewall: %w", err)
	}
	return found, nil
}

// boxesByAddr returns the box of each address, so that the connection table can be read without holding mu: reading takes
// time in proportion to its size.
func (f *Firewall) boxesByAddr() map[netip.Addr]policy.BoxID {
	f.mu.Lock()
	defer f.mu.Unlock()
	boxes := make(map[netip.Addr]policy.BoxID, len(f.boxes.byAddr))
	for a, b := range f.boxes.byAddr {
		boxes[a] = b.Box
	}
	return boxes
}

// Counters count the traffic of a box's interface since its creation.
type Counters = link.Counters

// Counters returns the counters of the boxes' interfaces. Boxes without an interface are missing in the result.
func (f *Firewall) Counters(boxes []policy.BoxID) (map[policy.BoxID]Counters, error) {
	names := make([]string, 0, len(boxes))
	for _, id := range boxes {
		names = append(names, network.LinkName(id))
	}
	all, err := f.links.Counters(names)
	if err != nil {
		return nil, err
	}
	found := map[policy.BoxID]Counters{}
	for _, id := range boxes {
		if c, ok := all[network.LinkName(id)]; ok {
			found[id] = c
		}
	}
	return found, nil
}

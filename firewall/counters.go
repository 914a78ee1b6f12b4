package firewall

import (
	"boxgate/firewall/link"
	"boxgate/firewall/network"
	"boxgate/policy"
)

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

package firewall

import (
	"context"
	"fmt"

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
	f.mu.Lock()
	defer f.mu.Unlock()
	found := map[policy.BoxID]map[Flow]Passed{}
	err := f.flows.Traffic(func(seen Flow, passed Passed) {
		b := f.boxes.byAddr[seen.Src.Addr()]
		if b == nil {
			return
		}
		if found[b.Box] == nil {
			found[b.Box] = map[Flow]Passed{}
		}
		found[b.Box][seen] = passed
	})
	if err != nil {
		return nil, fmt.Errorf("firewall: %w", err)
	}
	return found, nil
}

package firewall

import (
	"context"
	"fmt"

	"boxgate/policy"
)

// Traffic returns the open connections of the boxes, those to the gateway included, with about how many bytes of content have
// passed in each, both ways. DNS is left out.
func (f *Firewall) Traffic(ctx context.Context) (map[policy.BoxID]map[Flow]int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	found := map[policy.BoxID]map[Flow]int64{}
	err := f.flows.Traffic(func(seen Flow, bytes int64) {
		b := f.boxes.byAddr[seen.Src.Addr()]
		if b == nil {
			return
		}
		if found[b.Box] == nil {
			found[b.Box] = map[Flow]int64{}
		}
		found[b.Box][seen] = bytes
	})
	if err != nil {
		return nil, fmt.Errorf("firewall: %w", err)
	}
	return found, nil
}

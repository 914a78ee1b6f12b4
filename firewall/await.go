package firewall

import (
	"context"
	"fmt"
	"time"

	"boxgate/firewall/link"
	"boxgate/firewall/namespace"
	"boxgate/policy"
)

// boxTimeout is how long AwaitBox waits for the box's end of the link.
const boxTimeout = 3 * time.Second

// AwaitBox waits until packets pass the box's link both ways. The kernel brings a link up, and installs IPv6 addresses,
// with a short delay, and silently drops packets until then. A box that controls its own network can prevent that for ever.
// It only harms itself, so that is not an error: AwaitBox gives up after [boxTimeout], and nothing else waits for the box.
func (f *Firewall) AwaitBox(ctx context.Context, id policy.BoxID) error {
	f.mu.Lock()
	a, ok := f.boxes.byID[id]
	f.mu.Unlock()
	if !ok {
		return fmt.Errorf("firewall: box %s: %w", id, errUnknownBox)
	}
	ns, inside, err := namespace.Open(a.NetNS)
	if err != nil {
		return fmt.Errorf("firewall: box %s: %w", id, err)
	}
	defer func() { _ = ns.Close() }()
	defer inside.Close()
	patience, cancel := context.WithTimeout(ctx, boxTimeout)
	defer cancel()
	for _, wait := range []func() error{
		func() error { return namespace.AwaitCarrier(patience, f.nl, a.Link) },
		func() error { return namespace.AwaitCarrier(patience, inside, link.Inside) },
		func() error { return namespace.AwaitLocal(patience, inside, a.V4) },
		func() error { return namespace.AwaitLocal(patience, inside, a.V6) },
	} {
		if wait() != nil {
			return ctx.Err()
		}
	}
	return nil
}

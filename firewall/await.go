package firewall

import (
	"context"
	"fmt"
	"time"

	"boxgate/firewall/link"
	"boxgate/firewall/namespace"
	"boxgate/policy"
)

// boxPatience is how long a box's end is waited for.
const boxPatience = 3 * time.Second

// AwaitBox waits until packets pass the box's link both ways. The kernel notices that a link is up, and installs IPv6
// addresses, a little after it has been told to, and drops what comes in between without a word. A box that has a say in
// its own network may never let that happen, which is its own loss and no error: it is not waited for long, and nobody
// waits with it.
func (f *Firewall) AwaitBox(ctx context.Context, id policy.BoxID) error {
	f.mu.Lock()
	a, ok := f.boxes[id]
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
	patience, cancel := context.WithTimeout(ctx, boxPatience)
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

package firewall

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"boxgate/policy"
)

// settleTimeout is far more than a busy host needs to bring a link up.
const settleTimeout = 10 * time.Second

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
	ns, inside, err := openNamespace(a.NetNS)
	if err != nil {
		return fmt.Errorf("firewall: box %s: %w", id, err)
	}
	defer func() { _ = ns.Close() }()
	defer inside.Close()
	patience, cancel := context.WithTimeout(ctx, boxPatience)
	defer cancel()
	for _, wait := range []func() error{
		func() error { return awaitCarrier(patience, f.nl, a.link) },
		func() error { return awaitCarrier(patience, inside, boxLink) },
		func() error { return awaitLocal(patience, inside, a.V4) },
		func() error { return awaitLocal(patience, inside, a.V6) },
	} {
		if wait() != nil {
			return ctx.Err()
		}
	}
	return nil
}

func awaitCarrier(ctx context.Context, h *netlink.Handle, name string) error {
	return await(ctx, "interface "+name, func() (bool, error) {
		link, err := h.LinkByName(name)
		return err == nil && link.Attrs().OperState == netlink.OperUp, err
	})
}

// awaitLocal waits until the kernel delivers packets for the address to this host.
func awaitLocal(ctx context.Context, h *netlink.Handle, a netip.Addr) error {
	return await(ctx, "address "+a.String(), func() (bool, error) {
		routes, err := h.RouteGet(a.AsSlice())
		return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL, nil
	})
}

// await asks every millisecond until ready says so.
func await(ctx context.Context, what string, ready func() (bool, error)) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := ready(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not come up: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}

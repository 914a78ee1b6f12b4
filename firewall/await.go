package firewall

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// settleTimeout is far more than a busy host needs to bring a link up.
const settleTimeout = 10 * time.Second

// boxPatience is how long a box's end is waited for.
const boxPatience = 3 * time.Second

// awaitLink waits until packets pass the box's link both ways. The kernel notices that a link is up, and installs IPv6
// addresses, a little after it has been told to, and drops what comes in between without a word. A box that has a say in
// its own network may never let that happen, which is its own loss: it is not waited for long, and nobody waits with it,
// as f.mu is not held.
func (f *Firewall) awaitLink(ctx context.Context, a Attachment) error {
	ns, inside, err := openNamespace(a.NetNS)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	defer inside.Close()
	patience, cancel := context.WithTimeout(ctx, boxPatience)
	defer cancel()
	for _, wait := range []func() error{
		func() error { return awaitCarrier(patience, f.nl, linkName(a.Box)) },
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

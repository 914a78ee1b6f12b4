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

// awaitLink waits until packets pass the box's link both ways. The kernel notices that a link is up, and installs IPv6
// addresses, a little after it has been told to, and drops what comes in between without a word.
func (f *Firewall) awaitLink(ctx context.Context, b *box, inside *netlink.Handle) error {
	if err := awaitCarrier(ctx, f.nl, b.link); err != nil {
		return err
	}
	if err := awaitCarrier(ctx, inside, boxLink); err != nil {
		return fmt.Errorf("inside the box: %w", err)
	}
	for _, a := range b.sources {
		if err := awaitLocal(ctx, inside, a); err != nil {
			return fmt.Errorf("inside the box: %w", err)
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
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
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

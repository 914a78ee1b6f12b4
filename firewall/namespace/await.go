package namespace

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AwaitCarrier waits until the interface is up.
func AwaitCarrier(ctx context.Context, h *netlink.Handle, name string) error {
	return await(ctx, "interface "+name, func() (bool, error) {
		link, err := h.LinkByName(name)
		return err == nil && link.Attrs().OperState == netlink.OperUp, err
	})
}

// AwaitLocal waits until the kernel delivers packets for the address to this host.
func AwaitLocal(ctx context.Context, h *netlink.Handle, a netip.Addr) error {
	return await(ctx, "address "+a.String(), func() (bool, error) {
		routes, err := h.RouteGet(a.AsSlice())
		return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL, nil
	})
}

// await calls ready every millisecond until it returns true or an error.
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

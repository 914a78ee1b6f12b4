package route

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
	"boxgate/internal/nightly"
)

// A gateway that waits for its addresses, which a busy kernel delays, ends when its context does.
func TestTheWaitForAddressesEnds(t *testing.T) {
	nightly.Root(t)
	ns, err := namespace.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	nl, err := netlink.NewHandleAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close()
	h := New(ns, nl, network.Addresses{GatewayV4: netip.MustParseAddr("10.200.0.1"), GatewayV6: netip.MustParseAddr("fd42:b0c5::1")})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.AwaitAddresses(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, although the context has ended", err)
	}
}

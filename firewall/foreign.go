package firewall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"boxgate/audit"
	"boxgate/firewall/foreign"
	"boxgate/firewall/link"
	"boxgate/firewall/namespace"
	"boxgate/firewall/nft"
	"boxgate/firewall/route"
	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/policy/name"
)

// fallbackTunnels are the kinds of interfaces that a kernel with tunnel modules adds to every new namespace, down.
var fallbackTunnels = []string{"ipip", "sit", "ip6tnl", "gre", "gretap", "erspan", "ip6gre", "ip6gretap", "vti", "vti6"}

// CheckForeign returns why an existing network namespace cannot be attached: it belongs to the gateway or another box, or
// has an interface through which it could bypass the gateway.
func (f *Firewall) CheckForeign(path string) error {
	ns, inside, err := namespace.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	defer inside.Close()
	if f.ns.Equal(ns) {
		return errors.New("it is the network namespace of the gateway itself")
	}
	f.mu.Lock()
	id, held := f.namespaceOwner(path, "")
	f.mu.Unlock()
	if held {
		return fmt.Errorf("it is the network namespace of box %s", id)
	}
	interfaces, err := inside.LinkList()
	if err != nil {
		return fmt.Errorf("its interfaces: %w", err)
	}
	for _, l := range interfaces {
		if !harmless(l) {
			return fmt.Errorf("it has the interface %s: the gateway must be its only way out", l.Attrs().Name)
		}
	}
	return nil
}

// harmless reports whether no traffic can leave through an interface. A tunnel that was moved here sends from the namespace
// it came from.
func harmless(l netlink.Link) bool {
	a := l.Attrs()
	if a.Flags&net.FlagLoopback != 0 {
		return true
	}
	return a.Flags&net.FlagUp == 0 && a.NetNsID < 0 && slices.Contains(fallbackTunnels, l.Type())
}

// CheckTapName returns an error unless an interface of that name can be the tap of a box.
func CheckTapName(name string) error { return link.CheckTapName(name) }

// GuestMAC returns the hardware address of the interface of the virtual machine that is a box with a [Tap]. Packets from
// another address are dropped.
func GuestMAC(id policy.BoxID) net.HardwareAddr { return link.MAC(id) }

// CheckOtherRules returns an error for every chain of another program that drops packets of boxes, with the rule that would
// allow them: in netfilter every chain must accept a packet. Such a chain has the policy drop and no rule that accepts the
// boxes' interfaces. It checks the network namespace of the calling thread and needs CAP_NET_ADMIN. It sees nftables,
// including the iptables based on it, and iptables-legacy.
func CheckOtherRules() error { return foreign.Check() }

// OverlappingPools returns the pools that overlap a network or an address of the host of the calling thread: packets for that
// network would go to boxes, and the host would be cut off. Routes left by an earlier run of the gateway do not count. The
// error of a pool names the network and its interface; err means that the host's networks could not be read.
func OverlappingPools(pools ...netip.Prefix) (found map[netip.Prefix]error, err error) {
	return route.OverlappingPools(pools...)
}

// HasNumgen reports whether the kernel can count the connections of a box in many lists, see Config.OneList. The host's own
// network is not touched.
func HasNumgen() (bool, error) {
	ns, err := namespace.New()
	if err != nil {
		return false, err
	}
	defer func() { _ = ns.Close() }()
	return nft.HasNumgen(ns)
}

// Probe checks whether the kernel supports everything that the firewall needs: it opens one, with a box, in temporary
// network namespaces. The host's own network is not touched.
func Probe(ctx context.Context) error {
	host, err := namespace.New()
	if err != nil {
		return err
	}
	defer func() { _ = host.Close() }()
	box, err := namespace.New()
	if err != nil {
		return err
	}
	defer func() { _ = box.Close() }()
	return namespace.Do(host, func() error { return probe(fault.WithoutFaults(ctx), box) })
}

type discard struct{}

func (discard) Record(audit.Event) {}

func probe(ctx context.Context, box netns.NsHandle) error {
	four, six := netip.MustParsePrefix("198.18.0.0/16"), netip.MustParsePrefix("fd00:198:18::/64")
	a := func(p netip.Prefix, n int) netip.Addr {
		addr := p.Addr()
		for range n {
			addr = addr.Next()
		}
		return addr
	}
	f, err := Open(ctx, Config{PoolV4: four, PoolV6: six, GatewayV4: a(four, 1), GatewayV6: a(six, 1), SinkV4: a(four, 2),
		SinkV6: a(six, 2), DNSPort: 1, ProxyPort: 2, ExplicitPort: 3, Audit: discard{}})
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	const id policy.BoxID = "probe"
	if err := f.AddBox(ctx, Attachment{Box: id, NetNS: fmt.Sprintf("/proc/self/fd/%d", int(box)), V4: a(four, 3),
		V6: a(six, 3)}); err != nil {
		return err
	}
	if err := f.Apply(ctx, id, policy.KernelPlan{DefaultAllow: true, Protected: []netip.Prefix{four, six},
		SteerOther: name.PortSet{Ports: []uint16{80, 443}}}); err != nil {
		return err
	}
	return f.CutFlows(ctx, id, func(Flow) bool { return false })
}

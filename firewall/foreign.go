package firewall

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"boxgate/firewall/foreign"
	"boxgate/firewall/namespace"
	"boxgate/firewall/route"
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

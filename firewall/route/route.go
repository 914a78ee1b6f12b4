// Package route makes the host a router for boxes: it owns the routing rules that pass only packets judged by the table,
// the routes of the transparent proxy and of the pools, the gateway's addresses, and forwarding.
package route

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
)

// Host manages the gateway's routing in its network namespace: the gate, the route to the transparent proxy, the pools, its
// own addresses, and forwarding.
type Host struct {
	network.Addresses
	ns netns.NsHandle
	nl *netlink.Handle
}

// New returns the routing of the namespace that the handle is in. Both remain owned by the caller.
func New(ns netns.NsHandle, handle *netlink.Handle, addresses network.Addresses) *Host {
	return &Host{Addresses: addresses, ns: ns, nl: handle}
}

// ProxyTable is the routing table that delivers to local sockets, whatever the destination.
const ProxyTable = 45253

// Priorities of the routing rules. They precede every other rule, so the kernel's own rule for local addresses, which is
// first by default, is moved after them; nothing changes for other traffic. The new rule is added before the old one is
// deleted, so that there always is one.
const (
	prefHost    = 1 + iota // the host's own packets: as usual
	prefProxy              // assigned to the transparent proxy: to its socket
	prefLocal              // may reach the gateway: local addresses only
	prefForward            // may leave: everything but local addresses
	prefMark               // not judged, or judged and not routed above: prohibited
	prefSource             // from the pool without a mark: prohibited
	prefDest               // into the pool without a mark: prohibited
	prefTable              // the kernel's rule for local addresses
	prefRest               // everything else: as usual
)

// routingRules returns the gate: a packet of a box is routed only with a mark of the judge chain. When the table is
// flushed, packets have no such mark, and boxes reach neither the internet nor the host.
func (h *Host) routingRules(fam network.Family) []*netlink.Rule {
	pool := h.Pool(fam)
	rule := func(pref int, change func(*netlink.Rule)) *netlink.Rule {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Protocol = network.RouteFamily(fam), pref, network.KernelProtocol
		change(r)
		return r
	}
	return []*netlink.Rule{
		rule(prefTable, func(r *netlink.Rule) { r.Table = unix.RT_TABLE_LOCAL }),
		rule(prefRest, func(r *netlink.Rule) { r.Type = nl.FR_ACT_NOP }),
		rule(prefHost, func(r *netlink.Rule) { r.IifName, r.Goto = "lo", prefTable }),
		rule(prefProxy, func(r *netlink.Rule) { r.Mark, r.Table = network.MarkProxy, ProxyTable }),
		rule(prefLocal, func(r *netlink.Rule) { r.Mark, r.Table = network.MarkLocal, unix.RT_TABLE_LOCAL }),
		rule(prefForward, func(r *netlink.Rule) { r.Mark, r.Goto = network.MarkForward, prefRest }),
		rule(prefMark, func(r *netlink.Rule) { r.Mark, r.Type = network.MarkUnjudged, nl.FR_ACT_PROHIBIT }),
		rule(prefSource, func(r *netlink.Rule) { r.Src, r.Type = network.IPNet(pool), nl.FR_ACT_PROHIBIT }),
		rule(prefDest, func(r *netlink.Rule) { r.Dst, r.Type = network.IPNet(pool), nl.FR_ACT_PROHIBIT }),
	}
}

// Install installs the routes to local sockets and the gate.
func (h *Host) Install() error {
	for _, fam := range network.Families {
		if err := h.nl.RouteReplace(h.proxyRoute(fam)); err != nil {
			return fmt.Errorf("route for the transparent proxy: %w", err)
		}
		if err := h.nl.RouteReplace(h.poolRoute(fam)); err != nil {
			return fmt.Errorf("route of the pool: %w", err)
		}
		for _, r := range h.routingRules(fam) {
			if err := h.nl.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("routing rule %d: %w", r.Priority, err)
			}
		}
		if err := h.deleteRule(fam, func(r netlink.Rule) bool {
			return r.Priority == 0 && r.Table == unix.RT_TABLE_LOCAL
		}); err != nil {
			return err
		}
		if err := h.deleteOldPools(fam); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) proxyRoute(fam network.Family) *netlink.Route {
	all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if fam == network.V6 {
		all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return &netlink.Route{LinkIndex: 1, Table: ProxyTable, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
		Dst: network.IPNet(all), Protocol: network.KernelProtocol}
}

// poolRoute makes unused addresses of the pool unreachable, instead of routing them to the uplink.
func (h *Host) poolRoute(fam network.Family) *netlink.Route {
	return &netlink.Route{Type: unix.RTN_UNREACHABLE, Dst: network.IPNet(h.Pool(fam)), Protocol: network.KernelProtocol, Priority: poolPriority}
}

// deleteOldPools removes the gate of a pool that the configuration no longer contains.
func (h *Host) deleteOldPools(fam network.Family) error {
	return h.deleteRule(fam, func(r netlink.Rule) bool {
		gate := r.Priority == prefSource || r.Priority == prefDest
		return gate && r.Protocol == network.KernelProtocol && !samePool(r, h.routingRules(fam))
	})
}

func samePool(r netlink.Rule, rules []*netlink.Rule) bool {
	for _, want := range rules {
		if want.Priority == r.Priority && fmt.Sprint(want.Src, want.Dst) == fmt.Sprint(r.Src, r.Dst) {
			return true
		}
	}
	return false
}

// deleteRule removes the rules that match.
func (h *Host) deleteRule(fam network.Family, which func(netlink.Rule) bool) error {
	rules, err := h.nl.RuleList(network.RouteFamily(fam))
	if err != nil {
		return fmt.Errorf("routing rules: %w", err)
	}
	for _, r := range rules {
		if which(r) {
			if err := h.nl.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("delete routing rule %d: %w", r.Priority, err)
			}
		}
	}
	return nil
}

// Uninstall restores the position of the kernel's rule for local addresses, then removes our rules.
func (h *Host) Uninstall() error {
	for _, fam := range network.Families {
		if err := h.restoreLocal(fam); err != nil {
			return err
		}
		for _, r := range h.routingRules(fam) {
			if err := h.nl.RuleDel(r); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("delete routing rule %d: %w", r.Priority, err)
			}
		}
		for _, r := range []*netlink.Route{h.proxyRoute(fam), h.poolRoute(fam)} {
			if err := h.nl.RouteDel(r); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("delete route %v: %w", r.Dst, err)
			}
		}
	}
	return nil
}

// restoreLocal restores the kernel's rule for local addresses at its usual position.
func (h *Host) restoreLocal(fam network.Family) error {
	local := netlink.NewRule()
	local.Family, local.Priority, local.Table, local.Protocol = network.RouteFamily(fam), 0, unix.RT_TABLE_LOCAL, network.KernelProtocol
	if err := h.nl.RuleAdd(local); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("routing rule 0: %w", err)
	}
	return nil
}

// SetAddresses brings lo up and adds the gateway's addresses.
func (h *Host) SetAddresses() error {
	lo, err := h.nl.LinkByIndex(1)
	if err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	if err := h.nl.LinkSetUp(lo); err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	for _, a := range h.Gateways() {
		if err := h.nl.AddrReplace(lo, gatewayAddr(a)); err != nil {
			return fmt.Errorf("address %v: %w", a, err)
		}
	}
	return nil
}

// AwaitAddresses waits, for at most a minute, until the gateway's addresses work, so that servers can answer from them. It
// needs the routing.
func (h *Host) AwaitAddresses(ctx context.Context) error {
	const settleTimeout = time.Minute // the kernel installs them asynchronously, and namespaces that are being deleted keep it busy
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for _, a := range h.Gateways() {
		if err := namespace.AwaitLocal(ctx, h.nl, a); err != nil {
			return err
		}
	}
	return nil
}

func gatewayAddr(a netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: network.HostNet(a), Flags: unix.IFA_F_NODAD, Scope: unix.RT_SCOPE_UNIVERSE}
}

// UnsetAddresses removes the gateway's addresses from lo.
func (h *Host) UnsetAddresses() error {
	lo, err := h.nl.LinkByIndex(1)
	if err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	for _, a := range h.Gateways() {
		if err := h.nl.AddrDel(lo, gatewayAddr(a)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("address %v: %w", a, err)
		}
	}
	return nil
}

// SetForwarding enables forwarding.
func (h *Host) SetForwarding() error {
	return namespace.Do(h.ns, func() error {
		if err := keepRouterAdvertisements(); err != nil {
			return err
		}
		if err := reportConnections(); err != nil {
			return err
		}
		return namespace.WriteSysctls([]namespace.Sysctl{
			// Reverse path checks must look up with the packet's mark, otherwise the routing gate refuses them.
			{Path: "ipv4/conf/all/src_valid_mark", Value: "1"},
			{Path: "ipv4/ip_forward", Value: "1"},
			{Path: "ipv6/conf/all/forwarding", Value: "1"},
			{Path: "netfilter/nf_conntrack_acct", Value: "1", Optional: true},
			{Path: "netfilter/nf_conntrack_timestamp", Value: "1", Optional: true},
		})
	})
}

// reportConnections makes the kernel report connections if that was disabled; otherwise the log would miss all forwarded
// connections. Other values are kept, since with them the kernel reports to any listener.
func reportConnections() error {
	const path = "netfilter/nf_conntrack_events"
	if have, err := namespace.ReadSysctl(path); err != nil || have != "0" {
		return nil //nolint:nilerr // a kernel without it always reports
	}
	return namespace.WriteSysctls([]namespace.Sysctl{{Path: path, Value: "1"}})
}

// keepRouterAdvertisements lets uplinks keep IPv6 routes from router advertisements: a host that forwards ignores
// advertisements (and drops the routes) where accept_ra is 1, but not where it is 2.
func keepRouterAdvertisements() error {
	if on, err := namespace.ReadSysctl("ipv6/conf/all/forwarding"); err != nil || on == "1" {
		return err
	}
	links, err := filepath.Glob("/proc/sys/net/ipv6/conf/*/accept_ra")
	if err != nil {
		return err
	}
	for _, l := range links {
		path := strings.TrimPrefix(l, "/proc/sys/net/")
		if have, err := namespace.ReadSysctl(path); err == nil && have == "1" {
			if err := namespace.WriteSysctls([]namespace.Sysctl{{Path: path, Value: "2"}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Intact reports whether all our routing rules exist. If the rules cannot be read, it returns false.
func (h *Host) Intact() bool {
	for _, fam := range network.Families {
		present := map[int]uint32{} // priority → mark
		rules, err := h.nl.RuleList(network.RouteFamily(fam))
		if err != nil {
			return false
		}
		for _, r := range rules {
			present[r.Priority] = r.Mark
		}
		for _, r := range h.routingRules(fam) {
			if mark, ok := present[r.Priority]; !ok || mark != r.Mark {
				return false
			}
		}
	}
	return true
}

// PoolIntact reports whether the route of the pool exists. If the routes cannot be read, it returns false.
func (h *Host) PoolIntact(pool netip.Prefix) bool {
	routes, err := h.nl.RouteListFiltered(network.RouteFamily(network.FamilyOf(pool.Addr())), h.poolRoute(network.FamilyOf(pool.Addr())),
		netlink.RT_FILTER_DST|netlink.RT_FILTER_TYPE)
	return err == nil && len(routes) > 0
}

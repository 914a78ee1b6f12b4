package firewall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// proxyTable is the routing table that delivers to local sockets whatever the destination is.
const proxyTable = 45253

// Preferences of the routing rules. They stand before every other rule, so the kernel's own rule for local addresses,
// which comes first by default, is moved behind them; nothing changes for other traffic. The order of moving (add, then
// delete) leaves no moment without it.
const (
	prefHost    = 1 + iota // the host's own packets: as ever
	prefProxy              // assigned to the transparent proxy: to its socket
	prefLocal              // may reach the gateway: local addresses only
	prefForward            // may leave: everything but local addresses
	prefMark               // not judged, or judged and not at home above: prohibited
	prefSource             // from the pool without a mark: prohibited
	prefDest               // into the pool without a mark: prohibited
	prefTable              // the kernel's rule for local addresses
	prefRest               // everything else: as ever
)

// kernelProtocol marks rules and routes as the kernel's own, which network managers leave alone when they restart.
const kernelProtocol = unix.RTPROT_KERNEL

func nlFamily(f family) int {
	if f == v4 {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func hostNet(a netip.Addr) *net.IPNet { return ipNet(netip.PrefixFrom(a, a.BitLen())) }

// routingRules are the gate: a packet of a box is routed only with a mark of judge. When the table is flushed there is
// no such mark, and boxes reach neither the world nor the host.
func (f *Firewall) routingRules(fam family) []*netlink.Rule {
	pool := f.cfg.PoolV4
	if fam == v6 {
		pool = f.cfg.PoolV6
	}
	rule := func(pref int, change func(*netlink.Rule)) *netlink.Rule {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Protocol = nlFamily(fam), pref, kernelProtocol
		change(r)
		return r
	}
	return []*netlink.Rule{
		rule(prefTable, func(r *netlink.Rule) { r.Table = unix.RT_TABLE_LOCAL }),
		rule(prefRest, func(r *netlink.Rule) { r.Type = nl.FR_ACT_NOP }),
		rule(prefHost, func(r *netlink.Rule) { r.IifName, r.Goto = "lo", prefTable }),
		rule(prefProxy, func(r *netlink.Rule) { r.Mark, r.Table = markProxy, proxyTable }),
		rule(prefLocal, func(r *netlink.Rule) { r.Mark, r.Table = markLocal, unix.RT_TABLE_LOCAL }),
		rule(prefForward, func(r *netlink.Rule) { r.Mark, r.Goto = markForward, prefRest }),
		rule(prefMark, func(r *netlink.Rule) { r.Mark, r.Type = markUnjudged, nl.FR_ACT_PROHIBIT }),
		rule(prefSource, func(r *netlink.Rule) { r.Src, r.Type = ipNet(pool), nl.FR_ACT_PROHIBIT }),
		rule(prefDest, func(r *netlink.Rule) { r.Dst, r.Type = ipNet(pool), nl.FR_ACT_PROHIBIT }),
	}
}

// setRouting installs the routes to local sockets and the gate.
func (f *Firewall) setRouting() error {
	for _, fam := range families {
		if err := f.nl.RouteReplace(f.proxyRoute(fam)); err != nil {
			return fmt.Errorf("route for the transparent proxy: %w", err)
		}
		if err := f.nl.RouteReplace(f.poolRoute(fam)); err != nil {
			return fmt.Errorf("route of the pool: %w", err)
		}
		for _, r := range f.routingRules(fam) {
			if err := f.nl.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("routing rule %d: %w", r.Priority, err)
			}
		}
		if err := f.deleteRule(fam, func(r netlink.Rule) bool {
			return r.Priority == 0 && r.Table == unix.RT_TABLE_LOCAL
		}); err != nil {
			return err
		}
		if err := f.deleteOldPools(fam); err != nil {
			return err
		}
	}
	return nil
}

func (f *Firewall) proxyRoute(fam family) *netlink.Route {
	all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if fam == v6 {
		all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return &netlink.Route{LinkIndex: 1, Table: proxyTable, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
		Dst: ipNet(all), Protocol: kernelProtocol}
}

// poolRoute answers for addresses of the pool that no box has, instead of sending them to the uplink.
func (f *Firewall) poolRoute(fam family) *netlink.Route {
	pool := f.cfg.PoolV4
	if fam == v6 {
		pool = f.cfg.PoolV6
	}
	return &netlink.Route{Type: unix.RTN_UNREACHABLE, Dst: ipNet(pool), Protocol: kernelProtocol, Priority: poolPriority}
}

// deleteOldPools removes the gate of a pool that the configuration no longer names.
func (f *Firewall) deleteOldPools(fam family) error {
	return f.deleteRule(fam, func(r netlink.Rule) bool {
		gate := r.Priority == prefSource || r.Priority == prefDest
		return gate && r.Protocol == kernelProtocol && !samePool(r, f.routingRules(fam))
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
func (f *Firewall) deleteRule(fam family, which func(netlink.Rule) bool) error {
	rules, err := f.nl.RuleList(nlFamily(fam))
	if err != nil {
		return fmt.Errorf("routing rules: %w", err)
	}
	for _, r := range rules {
		if which(r) {
			if err := f.nl.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("delete routing rule %d: %w", r.Priority, err)
			}
		}
	}
	return nil
}

// unsetRouting puts the kernel's rule for local addresses back to its place, then removes ours.
func (f *Firewall) unsetRouting() error {
	for _, fam := range families {
		local := netlink.NewRule()
		local.Family, local.Priority, local.Table, local.Protocol = nlFamily(fam), 0, unix.RT_TABLE_LOCAL, kernelProtocol
		if err := f.nl.RuleAdd(local); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("routing rule 0: %w", err)
		}
		for _, r := range f.routingRules(fam) {
			if err := f.nl.RuleDel(r); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("delete routing rule %d: %w", r.Priority, err)
			}
		}
		for _, r := range []*netlink.Route{f.proxyRoute(fam), f.poolRoute(fam)} {
			if err := f.nl.RouteDel(r); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("delete route %v: %w", r.Dst, err)
			}
		}
	}
	return nil
}

// setAddresses brings lo up and gives it the gateway's addresses.
func (f *Firewall) setAddresses() error {
	lo, err := f.nl.LinkByIndex(1)
	if err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	if err := f.nl.LinkSetUp(lo); err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	for _, a := range []netip.Addr{f.cfg.GatewayV4, f.cfg.GatewayV6} {
		if err := f.nl.AddrReplace(lo, gatewayAddr(a)); err != nil {
			return fmt.Errorf("address %v: %w", a, err)
		}
	}
	return nil
}

// awaitAddresses waits until the gateway's addresses work, so that servers can answer from them. It needs the routing.
func (f *Firewall) awaitAddresses() error {
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	for _, a := range []netip.Addr{f.cfg.GatewayV4, f.cfg.GatewayV6} {
		if err := awaitLocal(ctx, f.nl, a); err != nil {
			return err
		}
	}
	return nil
}

func gatewayAddr(a netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: hostNet(a), Flags: unix.IFA_F_NODAD, Scope: unix.RT_SCOPE_UNIVERSE}
}

func (f *Firewall) unsetAddresses() error {
	lo, err := f.nl.LinkByIndex(1)
	if err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	for _, a := range []netip.Addr{f.cfg.GatewayV4, f.cfg.GatewayV6} {
		if err := f.nl.AddrDel(lo, gatewayAddr(a)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("address %v: %w", a, err)
		}
	}
	return nil
}

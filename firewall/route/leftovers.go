package route

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
)

// Leftovers are the routing objects that gateways left in a network namespace. They are recognized by their own properties,
// since the configuration may have had other pools then.
type Leftovers struct {
	nl        *netlink.Handle
	rules     []netlink.Rule
	routes    []netlink.Route
	addresses []netlink.Addr // on lo
}

// FindLeftovers looks for them in the namespace that the handle is in. The gateway's own addresses are recognized by the
// pools that are found, or, after an interrupted start, by the given pools.
func FindLeftovers(h *netlink.Handle, pools ...netip.Prefix) (*Leftovers, error) {
	l := &Leftovers{nl: h}
	for _, fam := range network.Families {
		if err := l.findRules(fam); err != nil {
			return nil, err
		}
		if err := l.findRoutes(fam); err != nil {
			return nil, err
		}
	}
	if !haveTable() && l.empty() {
		pools = nil
	}
	return l, l.findAddresses(append(pools, l.pools()...))
}

func (l *Leftovers) empty() bool { return len(l.rules)+len(l.routes)+len(l.addresses) == 0 }

func (l *Leftovers) findRules(fam network.Family) error {
	rules, err := namespace.Whole(func() ([]netlink.Rule, error) { return l.nl.RuleList(network.RouteFamily(fam)) })
	if err != nil {
		return fmt.Errorf("routing rules: %w", err)
	}
	for _, r := range rules {
		if r.Priority >= prefHost && r.Priority <= prefRest && r.Protocol == network.KernelProtocol {
			r.Family = network.RouteFamily(fam)
			l.rules = append(l.rules, r)
		}
	}
	// The kernel refuses to delete the target of another rule, so rules with a target go first.
	slices.SortStableFunc(l.rules, func(a, b netlink.Rule) int { return cmp.Compare(target(a), target(b)) })
	return nil
}

// target returns 0 for a rule that jumps to another rule, 1 for others.
func target(r netlink.Rule) int {
	if r.Goto >= 0 {
		return 0
	}
	return 1
}

func (l *Leftovers) findRoutes(fam network.Family) error {
	routes, err := namespace.Whole(func() ([]netlink.Route, error) {
		return l.nl.RouteListFiltered(network.RouteFamily(fam), &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	for _, r := range routes {
		if r.Table == ProxyTable || r.Type == unix.RTN_UNREACHABLE && r.Priority == poolPriority && r.Protocol == network.KernelProtocol {
			l.routes = append(l.routes, r)
		}
	}
	return nil
}

// pools returns the pools of the rules and routes that were found.
func (l *Leftovers) pools() []netip.Prefix {
	pools := ownPools(l.routes)
	for _, r := range l.rules {
		if r.Priority == prefSource && r.Src != nil {
			a, _ := netip.AddrFromSlice(r.Src.IP)
			bits, _ := r.Src.Mask.Size()
			pools = append(pools, netip.PrefixFrom(a, bits))
		}
	}
	return pools
}

func (l *Leftovers) findAddresses(pools []netip.Prefix) error {
	lo, err := l.nl.LinkByIndex(1)
	if err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	// No other program moves the gateway's addresses, so an interruption is no failure.
	addresses, err := namespace.Seen(func() ([]netlink.Addr, error) { return l.nl.AddrList(lo, unix.AF_UNSPEC) })
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("addresses of lo: %w", err)
	}
	for _, a := range addresses {
		ip, _ := netip.AddrFromSlice(a.IP)
		if slices.ContainsFunc(l.addresses, func(known netlink.Addr) bool { return known.Equal(a) }) {
			continue // several listings have it
		}
		if slices.ContainsFunc(pools, func(p netip.Prefix) bool { return p.Masked().Addr().Next() == ip.Unmap() }) {
			l.addresses = append(l.addresses, a)
		}
	}
	return nil
}

// Names describes the leftovers for people.
func (l *Leftovers) Names() (rules, routes, addresses []string) {
	for _, r := range l.rules {
		rules = append(rules, fmt.Sprintf("%s%d", family(r.Family), r.Priority))
	}
	for _, r := range l.routes {
		routes = append(routes, fmt.Sprintf("%v (table %d)", r.Dst, r.Table))
	}
	for _, a := range l.addresses {
		addresses = append(addresses, a.IPNet.String())
	}
	return rules, routes, addresses
}

func family(f int) string {
	if f == unix.AF_INET6 {
		return "IPv6 "
	}
	return "IPv4 "
}

// Remove removes them. Before that it restores the position of the kernel's own rule for local addresses.
func (l *Leftovers) Remove() error {
	h := Host{nl: l.nl}
	if len(l.rules) > 0 {
		for _, fam := range network.Families {
			if err := h.restoreLocal(fam); err != nil {
				return err
			}
		}
	}
	for _, r := range l.rules {
		if err := l.nl.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete routing rule %d: %w", r.Priority, err)
		}
	}
	lo, err := l.nl.LinkByIndex(1)
	if err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	for _, a := range l.addresses {
		if err := l.nl.AddrDel(lo, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("address %v: %w", a.IPNet, err)
		}
	}
	for _, r := range l.routes {
		if err := l.nl.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("delete route %v: %w", r.Dst, err)
		}
	}
	return nil
}

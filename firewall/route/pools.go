package route

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
)

// poolPriority is the metric of the routes of a pool, by which they are recognised.
const poolPriority = 1 << 20

// defaultBits is the longest prefix that counts as a default route: some hosts use halves (0.0.0.0/1) or 2000::/3
// instead.
const defaultBits = 3

// CheckPool returns an error if the pool overlaps a network or an address that the host of the calling thread uses
// itself: its packets would then go to boxes, and the host would be cut off. Routes left by an earlier run of the
// gateway do not count. The error names the pool, the network and its interface.
func CheckPool(pool netip.Prefix) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	return checkPool(h, pool.Masked())
}

// CheckPools does the same for the gateway's pools.
func (h *Host) CheckPools() error {
	return errors.Join(checkPool(h.nl, h.PoolV4), checkPool(h.nl, h.PoolV6))
}

func checkPool(h *netlink.Handle, pool netip.Prefix) error {
	routes, err := namespace.Whole(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(network.RouteFamily(network.FamilyOf(pool.Addr())), &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	links, err := namespace.Whole(h.LinkList)
	if err != nil {
		return fmt.Errorf("interfaces: %w", err)
	}
	byIndex := map[int]*netlink.LinkAttrs{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l.Attrs()
	}
	pools, table := ownPools(routes), haveTable()
	for _, r := range routes {
		dst, used := usedBy(r)
		if !used || !dst.Overlaps(pool) {
			continue
		}
		link := byIndex[r.LinkIndex]
		if link == nil {
			link = &netlink.LinkAttrs{Name: "another route"}
		}
		// The boxes' own links, and the gateway's addresses on lo.
		ours := link.Group == network.LinkGroup || r.LinkIndex == 1 && dst.IsSingleIP() &&
			(slices.ContainsFunc(pools, func(p netip.Prefix) bool { return p.Contains(dst.Addr()) }) || table && isFirst(dst.Addr(), pool))
		if !ours {
			return fmt.Errorf("the pool %v overlaps %v on %s, which the host uses itself: set another pool", pool, dst, link.Name)
		}
	}
	return nil
}

// isFirst reports whether an address is the gateway's or the sink of a pool. An interrupted start has set them before
// there are routes to the pool, but after its table exists.
func isFirst(a netip.Addr, pool netip.Prefix) bool {
	gateway := pool.Addr().Next()
	return a == gateway || a == gateway.Next()
}

// haveTable reports whether a gateway runs, or ran, in the network namespace of the calling thread.
func haveTable() bool {
	c, err := nftables.New()
	if err != nil {
		return false
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	return err == nil && slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == network.TableName })
}

// ownPools returns the pools of the gateway that runs, or ran, here.
func ownPools(routes []netlink.Route) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range routes {
		if p, ok := prefixOf(r); ok && r.Type == unix.RTN_UNREACHABLE && r.Priority == poolPriority {
			out = append(out, p)
		}
	}
	return out
}

// usedBy returns the destination of a route to an actual network. Default routes do not count, nor do unreachable
// routes and the like.
func usedBy(r netlink.Route) (netip.Prefix, bool) {
	p, ok := prefixOf(r)
	switch r.Type {
	case unix.RTN_UNREACHABLE, unix.RTN_BLACKHOLE, unix.RTN_PROHIBIT, unix.RTN_THROW:
		return p, false
	}
	return p, ok && p.Bits() > defaultBits
}

func prefixOf(r netlink.Route) (netip.Prefix, bool) {
	if r.Dst == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(r.Dst.IP)
	bits, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(a, bits), ok
}

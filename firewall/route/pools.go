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

// poolPriority is the metric of the routes of a pool, which identifies them.
const poolPriority = 1 << 20

// defaultBits is the longest prefix that counts as a default route: some hosts use halves (0.0.0.0/1) or 2000::/3 instead.
const defaultBits = 3

// OverlappingPools returns the pools that overlap a network or an address of the host of the calling thread: packets for that
// network would go to boxes, and the host would be cut off. Routes left by an earlier run of the gateway do not count. The
// error of a pool names the network and its interface; err means that the host's networks could not be read.
func OverlappingPools(pools ...netip.Prefix) (found map[netip.Prefix]error, err error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	return overlaps(h, pools)
}

// CheckPools returns an error if one of the gateway's pools overlaps.
func (h *Host) CheckPools() error {
	found, err := overlaps(h.nl, []netip.Prefix{h.PoolV4, h.PoolV6})
	return errors.Join(err, found[h.PoolV4], found[h.PoolV6])
}

func overlaps(h *netlink.Handle, pools []netip.Prefix) (found map[netip.Prefix]error, err error) {
	var routes []netlink.Route
	for _, family := range network.Families {
		of, err := namespace.Whole(func() ([]netlink.Route, error) {
			return h.RouteListFiltered(network.RouteFamily(family), &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("routes: %w", err)
		}
		routes = append(routes, of...)
	}
	links, err := namespace.Whole(h.LinkList) // after the routes: no route leads to an interface that does not exist yet
	if err != nil {
		return nil, fmt.Errorf("interfaces: %w", err)
	}
	byIndex := map[int]*netlink.LinkAttrs{0: {Name: "another route"}}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l.Attrs()
	}
	own, table := ownPools(routes), haveTable()
	found = map[netip.Prefix]error{}
	for _, pool := range pools {
		if err := overlap(pool.Masked(), routes, byIndex, func(dst netip.Prefix) bool {
			isOwn := slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(dst.Addr()) })
			return dst.IsSingleIP() && (isOwn || table && isFirst(dst.Addr(), pool.Masked()))
		}); err != nil {
			found[pool] = err
		}
	}
	return found, nil
}

// overlap returns an error if a pool overlaps a network. isGateways reports whether a network on lo is an address of the
// gateway.
func overlap(pool netip.Prefix, routes []netlink.Route, links map[int]*netlink.LinkAttrs, isGateways func(netip.Prefix) bool) error {
	for _, r := range routes {
		dst, used := usedBy(r)
		if !used || !dst.Overlaps(pool) {
			continue
		}
		link := links[r.LinkIndex]
		if link == nil { // deleted since, and its routes with it
			continue
		}
		ofBox, ofGateway := network.IsLinkGroup(link.Group), r.LinkIndex == 1 && isGateways(dst)
		if !ofBox && !ofGateway {
			return fmt.Errorf("the pool %v overlaps %v on %s, which the host uses itself: set another pool", pool, dst, link.Name)
		}
	}
	return nil
}

// isFirst reports whether an address is the gateway's or the sink of a pool. An interrupted start has set them before there
// are routes to the pool, but after its table exists.
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

// usedBy returns the destination of a route to an actual network. Default routes do not count, nor do unreachable routes
// and the like.
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

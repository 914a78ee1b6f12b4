package route

import (
	"net/netip"

	"github.com/vishvananda/netlink"

	"boxgate/firewall/network"
)

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

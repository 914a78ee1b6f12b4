package route

import (
	"path/filepath"
	"strings"

	"boxgate/firewall/namespace"
)

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

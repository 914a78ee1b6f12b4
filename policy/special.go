package policy

import "net/netip"

// specialRange is one line of the table below.
type specialRange struct {
	prefix netip.Prefix
	what   string
}

// specialPurpose lists the ranges that the IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890 and its
// updates) mark not globally reachable, multicast, and a few that are in no registry but lead to the same places. The
// small globally reachable exceptions inside 192.0.0.0/24 and 2001::/23 (PCP and TURN anycast, ORCHIDv2 and the like)
// are kept: they are addresses of the next router or of no machine at all.
var specialPurpose = []specialRange{
	{netip.MustParsePrefix("0.0.0.0/8"), "this network"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("100.64.0.0/10"), "shared address space"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("168.63.129.16/32"), "cloud metadata"}, // Azure's host agent, on a public address
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},
	{netip.MustParsePrefix("192.0.0.0/24"), "IETF protocol assignments"},
	{netip.MustParsePrefix("192.0.2.0/24"), "documentation"},
	{netip.MustParsePrefix("192.88.99.0/24"), "6to4 relay"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},
	{netip.MustParsePrefix("198.18.0.0/15"), "benchmarking"},
	{netip.MustParsePrefix("198.51.100.0/24"), "documentation"},
	{netip.MustParsePrefix("203.0.113.0/24"), "documentation"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},

	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("::/96"), "IPv4-compatible"}, // RFC 4291 2.5.5.1, deprecated
	{mapped, "IPv4-mapped"},
	{netip.MustParsePrefix("::ffff:0:0:0/96"), "IPv4-translated"}, // RFC 2765
	{netip.MustParsePrefix("64:ff9b:1::/48"), "local-use NAT64"},  // RFC 8215
	{netip.MustParsePrefix("100::/64"), "discard"},
	{netip.MustParsePrefix("100:0:0:1::/64"), "dummy"},
	{netip.MustParsePrefix("2001::/32"), "Teredo"},
	{netip.MustParsePrefix("2001::/23"), "IETF protocol assignments"},
	{netip.MustParsePrefix("2001:db8::/32"), "documentation"},
	{netip.MustParsePrefix("2002::/16"), "6to4"},
	{netip.MustParsePrefix("3fff::/20"), "documentation"},
	{netip.MustParsePrefix("5f00::/16"), "segment routing"},
	{netip.MustParsePrefix("fc00::/7"), "unique local"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fec0::/10"), "site-local"}, // RFC 3879, deprecated, still routed inside some sites
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

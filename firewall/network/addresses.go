package network

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Family is an address family, with netfilter's number.
type Family byte

// The families of boxes.
const (
	V4 Family = unix.NFPROTO_IPV4
	V6 Family = unix.NFPROTO_IPV6
)

// Families lists both.
var Families = []Family{V4, V6}

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return V4
	}
	return V6
}

// RouteFamily returns the number of the family in route netlink.
func RouteFamily(f Family) int {
	if f == V4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// IPNet converts a prefix for package netlink.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// HostNet returns the prefix of a single address.
func HostNet(a netip.Addr) *net.IPNet { return IPNet(netip.PrefixFrom(a, a.BitLen())) }

// Addresses are the addresses of a gateway and its boxes.
type Addresses struct {
	PoolV4, PoolV6       netip.Prefix // every box has one address of each
	GatewayV4, GatewayV6 netip.Addr   // the gateway's own, inside the pools
	SinkV4, SinkV6       netip.Addr   // returned for names that a box may not reach; inside the pools, on no interface
}

// Pool returns the pool of a family.
func (a *Addresses) Pool(f Family) netip.Prefix {
	if f == V6 {
		return a.PoolV6
	}
	return a.PoolV4
}

// Gateways returns the gateway's own addresses.
func (a *Addresses) Gateways() []netip.Addr { return []netip.Addr{a.GatewayV4, a.GatewayV6} }

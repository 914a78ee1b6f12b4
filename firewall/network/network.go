// Package network has the definitions that the parts of the firewall share: the gateway's addresses, the address families,
// and the names and marks with which the kernel distinguishes boxes and verdicts.
package network

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"boxgate/policy"
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

// LookupAddrs is the number of addresses of [LookupAddr], a power of two.
const LookupAddrs = 8

// LookupAddr returns the address of the i-th socket for DNS lookups that boxes send to other servers than the gateway, i
// below [LookupAddrs]. Boxes are divided among the sockets by the end of their addresses. No packet with such a destination
// comes from a network: the kernel rules assign lookups to these sockets, which is possible only by address and port.
func LookupAddr(f Family, i int) netip.Addr {
	if f == V4 {
		return netip.AddrFrom4([4]byte{127, 83, 53, byte(i)}) // loopback
	}
	return netip.AddrFrom16([16]byte{0: 1, 14: 83, 15: byte(i)}) // 100::/64 is discarded (RFC 6666)
}

// TableName is the nftables table (family inet) that boxgate owns.
const TableName = "boxgate"

// LinkGroup is the device group of every host-side interface of a box. Rules match the group, not the name: an interface
// that is renamed no longer matches the maps and stays closed.
const LinkGroup uint32 = 0xb0c5

// LinkGroupLast is the device group of interfaces that are about to be deleted: the kernel deletes a whole group in about
// the time of one interface. No rule matches it, so such an interface is closed.
const LinkGroupLast uint32 = 0xb0c6

// IsLinkGroup reports whether a device group is one of the boxes' groups.
func IsLinkGroup(group uint32) bool { return group == LinkGroup || group == LinkGroupLast }

// Packet marks. The interface sets MarkUnjudged on every packet of a box, the judge chain replaces it, and routing passes
// no packet with another mark. The values are whole words, to avoid the bits that other software uses.
const (
	MarkUnjudged uint32 = 0xb0c50f00 + iota // not seen by judge: prohibited
	MarkForward                             // may leave the host, and only that
	MarkLocal                               // may reach a port of the gateway, and only that
	MarkProxy                               // assigned to the transparent proxy
)

// FlowForwarded is the bit of a connection mark that is set when the kernel forwards the connection; the other bits
// identify the box (see [BoxMark]). Connections to DNS and the proxy carry only the box's bits.
const FlowForwarded uint32 = 1

// MarkedBox is a bit that is set in every connection mark of a box.
const MarkedBox uint32 = 1 << 31

// BoxMark returns the connection mark of a box: stable across restarts, never zero. Two boxes may share one, so users must
// compare addresses as well.
func BoxMark(id policy.BoxID) uint32 {
	sum := sha256.Sum256([]byte("mark " + id))
	return binary.BigEndian.Uint32(sum[:])&^FlowForwarded | MarkedBox
}

// LinkName returns the name of a box's host-side interface (at most 15 bytes).
func LinkName(id policy.BoxID) string {
	sum := sha256.Sum256([]byte("link " + id))
	return LinkPrefix + strings.ToLower(base32.HexEncoding.EncodeToString(sum[:]))[:12]
}

// LinkPrefix is the prefix of the name of every host-side interface of a box.
const LinkPrefix = "bg"

// KernelProtocol marks rules and routes as the kernel's own, so that network managers do not remove them when they restart.
const KernelProtocol = unix.RTPROT_KERNEL

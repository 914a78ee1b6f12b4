// Package peernet groups the addresses of clients by the networks that one customer of a provider can have, so that listeners share
// what strangers may hold among customers instead of addresses.
//
// An IPv6 customer has a /64 at least, often a /56, and a /48 at most (RFC 6177): 65,536 networks of the smallest size. So each
// address counts for all three, and a wider network may hold more than a narrow one, since it may also be a provider with many
// customers.
package peernet

import (
	"net"
	"net/netip"
)

// Levels is the number of networks that an IPv6 address counts for.
const Levels = 3

// bits are the sizes of the networks of an IPv6 address, the narrowest first.
var bits = [Levels]int{64, 56, 48}

// translated has the IPv4 clients of a network without IPv4, behind a translator (RFC 6052, RFC 7755): all of them are in one /64.
var translated = netip.MustParsePrefix("64:ff9b::/96")

// Network returns the narrowest network that an address counts for: an IPv4 address itself, also one in an IPv6 address, or the /64 of an
// IPv6 address. It is the zero Prefix for an invalid address.
func Network(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	if translated.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	size := a.BitLen()
	if a.Is6() {
		size = bits[0]
	}
	network, _ := a.Prefix(size) // zero for an invalid address
	return network
}

// NetworkOf is [Network] for the address of a TCP client.
func NetworkOf(at net.Addr) netip.Prefix {
	tcp, ok := at.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	return Network(tcp.AddrPort().Addr())
}

// All returns a network of [Network] followed by the larger networks around it. An IPv4 address, a single IPv6 address and the zero
// Prefix have no larger networks: the other elements are zero.
func All(network netip.Prefix) (all [Levels]netip.Prefix) {
	all[0] = network
	if !network.Addr().Is6() || network.Bits() != bits[0] {
		return all
	}
	for i, size := range bits {
		all[i], _ = network.Addr().Prefix(size)
	}
	return all
}

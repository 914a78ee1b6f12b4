package config

import (
	"fmt"
	"net/netip"
)

// Addresses are the gateway's own: the first of each pool is the gateway's (DNS, explicit proxy, default route of the
// boxes), the second is the sink.
type Addresses struct {
	PoolV4, PoolV6       netip.Prefix
	GatewayV4, GatewayV6 netip.Addr
	SinkV4, SinkV6       netip.Addr
	Exempt               []netip.Prefix
}

// AddressesOf takes them from a validated configuration.
func AddressesOf(c Network) (Addresses, error) {
	var a Addresses
	var err error
	if a.PoolV4, err = netip.ParsePrefix(c.PoolV4); err != nil {
		return a, fmt.Errorf("network.pool_v4: %w", err)
	}
	if a.PoolV6, err = netip.ParsePrefix(c.PoolV6); err != nil {
		return a, fmt.Errorf("network.pool_v6: %w", err)
	}
	for _, s := range c.ProtectedExempt {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return a, fmt.Errorf("network.protected_exempt: %w", err)
		}
		a.Exempt = append(a.Exempt, p)
	}
	a.GatewayV4, a.GatewayV6 = a.PoolV4.Addr().Next(), a.PoolV6.Addr().Next()
	a.SinkV4, a.SinkV6 = a.GatewayV4.Next(), a.GatewayV6.Next()
	return a, nil
}

// Own returns the gateway's and the sink's addresses.
func (a Addresses) Own() []netip.Addr {
	return []netip.Addr{a.GatewayV4, a.GatewayV6, a.SinkV4, a.SinkV6}
}

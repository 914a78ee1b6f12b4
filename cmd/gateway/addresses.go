package main

import (
	"fmt"
	"net/netip"
)

// addresses are those that the gateway itself uses: the first of each pool is the gateway's own (DNS, explicit proxy,
// default route of the boxes), the second is the sink.
type addresses struct {
	poolV4, poolV6       netip.Prefix
	gatewayV4, gatewayV6 netip.Addr
	sinkV4, sinkV6       netip.Addr
	exempt               []netip.Prefix
}

// newAddresses reads them from a validated configuration.
func newAddresses(c networkConfig) (addresses, error) {
	var a addresses
	var err error
	if a.poolV4, err = netip.ParsePrefix(c.PoolV4); err != nil {
		return a, fmt.Errorf("network.pool_v4: %w", err)
	}
	if a.poolV6, err = netip.ParsePrefix(c.PoolV6); err != nil {
		return a, fmt.Errorf("network.pool_v6: %w", err)
	}
	for _, s := range c.ProtectedExempt {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return a, fmt.Errorf("network.protected_exempt: %w", err)
		}
		a.exempt = append(a.exempt, p)
	}
	a.gatewayV4, a.gatewayV6 = a.poolV4.Addr().Next(), a.poolV6.Addr().Next()
	a.sinkV4, a.sinkV6 = a.gatewayV4.Next(), a.gatewayV6.Next()
	return a, nil
}

// own returns the gateway's and the sink's addresses.
func (a addresses) own() []netip.Addr {
	return []netip.Addr{a.gatewayV4, a.gatewayV6, a.sinkV4, a.sinkV6}
}

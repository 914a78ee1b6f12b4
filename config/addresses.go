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
	ForwardExempt        []netip.Prefix // from connections to the proxies that rules forward to, besides Exempt
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
	if a.Exempt, err = prefixes("network.protected_exempt", c.ProtectedExempt); err != nil {
		return a, err
	}
	if a.ForwardExempt, err = prefixes("network.forward_exempt", c.ForwardExempt); err != nil {
		return a, err
	}
	a.GatewayV4, a.GatewayV6 = a.PoolV4.Addr().Next(), a.PoolV6.Addr().Next()
	a.SinkV4, a.SinkV6 = a.GatewayV4.Next(), a.GatewayV6.Next()
	return a, nil
}

func prefixes(key string, list []string) (out []netip.Prefix, err error) {
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// Own returns the gateway's and the sink's addresses.
func (a Addresses) Own() []netip.Addr {
	return []netip.Addr{a.GatewayV4, a.GatewayV6, a.SinkV4, a.SinkV6}
}

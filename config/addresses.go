package config

import (
	"fmt"
	"net/netip"
	"slices"

	"boxgate/policy"
)

// Addresses are the gateway's own addresses. The first address of each pool is the gateway's (DNS, explicit proxy,
// default route of the boxes), the second is the sink.
type Addresses struct {
	PoolV4, PoolV6       netip.Prefix
	GatewayV4, GatewayV6 netip.Addr
	SinkV4, SinkV6       netip.Addr
	Exempt               []netip.Prefix
	ForwardExempt        []netip.Prefix // also exempt for connections to proxies that rules forward to
	Sources              []netip.Addr   // source addresses of the host that boxes can be given
}

// AddressesOf returns the addresses of a validated configuration.
func AddressesOf(c Network) (Addresses, error) {
	var a Addresses
	var err error
	if a.PoolV4, err = netip.ParsePrefix(c.PoolV4); err != nil {
		return a, fmt.Errorf("network.pool_v4: %w", err)
	}
	if a.PoolV6, err = netip.ParsePrefix(c.PoolV6); err != nil {
		return a, fmt.Errorf("network.pool_v6: %w", err)
	}
	if a.Exempt, err = parsePrefixes("network.protected_exempt", c.ProtectedExempt); err != nil {
		return a, err
	}
	if a.ForwardExempt, err = parsePrefixes("network.forward_exempt", c.ForwardExempt); err != nil {
		return a, err
	}
	for _, s := range c.Sources {
		source, err := policy.ParseSourceAddr(s)
		if err != nil {
			return a, fmt.Errorf("network.sources: %w", err)
		}
		a.Sources = append(a.Sources, source)
	}
	a.GatewayV4, a.GatewayV6 = a.PoolV4.Addr().Next(), a.PoolV6.Addr().Next()
	a.SinkV4, a.SinkV6 = a.GatewayV4.Next(), a.GatewayV6.Next()
	return a, nil
}

func parsePrefixes(key string, list []string) (out []netip.Prefix, err error) {
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

// checkSources requires valid source addresses without duplicates, outside of the boxes' pools.
func (n *Network) checkSources(fail func(key, format string, args ...any)) {
	const key = "network.sources"
	if len(n.Sources) > MaxSources {
		fail(key, "has %d addresses; the limit is %d", len(n.Sources), MaxSources)
	}
	var seen []netip.Addr
	for _, s := range n.Sources {
		a, err := policy.ParseSourceAddr(s)
		if err != nil {
			fail(key, "%v", err)
			continue
		}
		for pool, cidr := range map[string]string{"network.pool_v4": n.PoolV4, "network.pool_v6": n.PoolV6} {
			if p, err := netip.ParsePrefix(cidr); err == nil && p.Contains(a) {
				fail(key, "%v is in %s, whose addresses never leave the host", a, pool)
			}
		}
		if slices.Contains(seen, a) {
			fail(key, "%v is given twice", a)
		}
		seen = append(seen, a)
	}
}

// MaxSources is the maximum number of source addresses.
const MaxSources = 1024

package config

import (
	"fmt"
	"net/netip"
	"slices"

	"boxgate/policy"
	"boxgate/rule"
	"boxgate/rule/upstream"
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

// Upstream is the proxy through which the boxes' connections leave the host.
type Upstream struct {
	URL      string `yaml:"url"` // empty: no proxy
	Username string `yaml:"username"`
	// Password is the name of an entry of the section secrets.
	Password string `yaml:"password"`
	// ResolveThere are the domains that the proxy resolves; the gateway resolves all others.
	ResolveThere []string `yaml:"resolve_there"`
	// Direct are domains, and networks for servers requested by address, that are reached without the proxy.
	Direct []string `yaml:"direct"`
}

// Compile returns the compiled proxy; nil if not set.
func (u Upstream) Compile() (*policy.HostUpstream, error) {
	if u.URL == "" {
		return nil, nil
	}
	p, err := policy.ParseUpstream(u.URL)
	if err != nil {
		return nil, err
	}
	if u.Username != "" {
		p.Login = upstream.New("", u.Username, rule.Value{Source: u.Password})
	}
	return policy.NewHostUpstream(*p, u.ResolveThere, u.Direct)
}

func (u Upstream) check(fail func(key, format string, args ...any), secrets Secrets) {
	if u.URL == "" {
		if u.Username != "" || u.Password != "" || len(u.ResolveThere)+len(u.Direct) > 0 {
			fail("proxy.upstream.url", "is not set; set it, or remove the rest of proxy.upstream")
		}
		return
	}
	if _, err := policy.ParseUpstream(u.URL); err != nil { // not quoted: it may contain credentials
		fail("proxy.upstream.url", "%v; use one such as http://proxy.example.com:3128 or socks5://192.0.2.1:1080", err)
		return
	}
	_, known := secrets.Sources[u.Password]
	switch {
	case (u.Username == "") != (u.Password == ""):
		fail("proxy.upstream", "has one of username and password; set both, or neither")
	case u.Password != "" && !known:
		fail("proxy.upstream.password", "is not the name of an entry of secrets; add one, such as secrets: {corp-proxy: {file: /etc/boxgate/proxy-password}}, and use its name")
	}
	if err := upstream.CheckUser(u.Username); u.Username != "" && err != nil {
		fail("proxy.upstream.username", "%v", err)
	}
	if _, err := u.Compile(); err != nil {
		fail("proxy.upstream", "%v", err)
	}
}

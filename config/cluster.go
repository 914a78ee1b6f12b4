package config

import (
	"net/netip"
	"reflect"
	"strings"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Cluster has the services of a Kubernetes cluster that boxes may use if their policies list them.
type Cluster struct {
	Services []string `yaml:"services"` // CIDRs of the service addresses
	DNS      []string `yaml:"dns"`      // the cluster's DNS servers, like dns.upstreams
	Domain   string   `yaml:"domain"`   // of the cluster's names
}

const (
	// MaxClusterServices is the maximum number of CIDRs of a cluster.
	MaxClusterServices = 16
	// MaxClusterDNS is the maximum number of DNS servers of a cluster.
	MaxClusterDNS = 8

	defaultClusterDomain = "cluster.local"
)

// IsSet reports whether there is a cluster.
func (c Cluster) IsSet() bool { return len(c.Services)+len(c.DNS) > 0 }

// Name returns the domain of the cluster's names.
func (c Cluster) Name() (name.Name, error) {
	if c.Domain == "" {
		return name.Parse(defaultClusterDomain)
	}
	return name.Parse(c.Domain)
}

// Compile returns the compiled cluster; nil if not set.
func (c Cluster) Compile() (*policy.Cluster, error) {
	if !c.IsSet() {
		return nil, nil
	}
	domain, err := c.Name()
	if err != nil {
		return nil, err
	}
	services, err := parsePrefixes("network.cluster.services", c.Services)
	if err != nil {
		return nil, err
	}
	return policy.NewCluster(domain, services), nil
}

// neverServices are protected ranges without service addresses: they lead to this host, to its link, to the metadata of its cloud or to many
// hosts.
var neverServices = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("168.63.129.16/32"),
	netip.MustParsePrefix("224.0.0.0/3"), netip.MustParsePrefix("::/8"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("2001::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
	netip.MustParsePrefix("100.100.100.200/32"), netip.MustParsePrefix("192.0.0.192/32"), netip.MustParsePrefix("fd00:ec2::254/128"), netip.MustParsePrefix("fd20:ce::254/128"),
}

// checkCluster finds clusters that no gateway may have.
func (n *Network) checkCluster(fail func(key, format string, args ...any)) {
	const key = "network.cluster"
	c := n.Cluster
	if reflect.DeepEqual(c, Cluster{}) {
		return
	}
	if len(c.Services) == 0 || len(c.DNS) == 0 {
		fail(key, "needs services, such as [10.96.0.0/12], and dns, such as [10.96.0.10]")
	}
	if len(c.Services) > MaxClusterServices {
		fail(key+".services", "has %d CIDRs; the limit is %d", len(c.Services), MaxClusterServices)
	}
	if len(c.DNS) > MaxClusterDNS {
		fail(key+".dns", "has %d servers; the limit is %d", len(c.DNS), MaxClusterDNS)
	}
	if d, err := c.Name(); err != nil {
		fail(key+".domain", "%v", err)
	} else if reserved, _ := name.Parse("boxgate.internal"); d.IsWithin(reserved) || reserved.IsWithin(d) || d.IsLoopback() || !strings.Contains(d.String(), ".") {
		fail(key+".domain", "%s has names of others than the cluster; use its own domain, such as %s", d, defaultClusterDomain)
	}
	checkCIDRs(fail, key+".services", c.Services)
	services, err := parsePrefixes(key+".services", c.Services)
	if err != nil {
		return // reported by checkCIDRs
	}
	for _, p := range services {
		n.checkServiceRange(p, func(format string, args ...any) { fail(key+".services", format, args...) })
	}
}

// The widest service ranges. Kubernetes accepts none that are wider (--service-cluster-ip-range of kube-apiserver); they would contain nodes and
// pods.
const (
	minServiceBitsV4 = 12
	minServiceBitsV6 = 64
)

// checkServiceRange refuses ranges that are too wide, and addresses that are open already or belong to the host or to boxes.
func (n *Network) checkServiceRange(p netip.Prefix, fail func(format string, args ...any)) {
	if p.Addr().Is4() && p.Bits() < minServiceBitsV4 || p.Addr().Is6() && p.Bits() < minServiceBitsV6 {
		fail("%s is too wide; use the service range of the cluster, such as 10.96.0.0/12", p)
	}
	for _, never := range neverServices {
		if p.Overlaps(never) {
			fail("%s overlaps %s, which has no service addresses", p, never)
		}
	}
	for key, list := range map[string][]string{"network.pool_v4": {n.PoolV4}, "network.pool_v6": {n.PoolV6}, "network.protected_exempt": n.ProtectedExempt} {
		for _, s := range list {
			if q, err := netip.ParsePrefix(s); err == nil && p.Overlaps(q) {
				fail("%s overlaps %s in %s", p, q, key)
			}
		}
	}
}

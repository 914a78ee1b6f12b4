package config

import (
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
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

// Kubernetes makes resources of a cluster policies for pods.
type Kubernetes struct {
	// Policies makes each BoxgatePolicy of the cluster a named policy for the pods of its namespace.
	Policies bool `yaml:"policies"`
	// Server is the URL of the API server; empty: see [Kubernetes.URL].
	Server string `yaml:"server"`
	// TokenFile has the bearer token of the gateway's account, and CAFile the root of the API server's certificate in PEM.
	TokenFile string `yaml:"token_file"`
	CAFile    string `yaml:"ca_file"`
}

func defaultKubernetes() Kubernetes {
	return Kubernetes{TokenFile: "/etc/boxgate-kubernetes/token", CAFile: "/etc/boxgate-kubernetes/ca.crt"}
}

// The variables that the kubelet sets in every container, without the prefix of boxgate's.
const (
	kubernetesHost = "KUBERNETES_SERVICE_HOST"
	kubernetesPort = "KUBERNETES_SERVICE_PORT"
)

// URL returns the URL of the API server: the configured one, or that of the cluster whose pod the gateway is, from the variables of its
// environment. It is empty if there is neither.
func (k Kubernetes) URL(variable func(string) string) string {
	if k.Server != "" {
		return k.Server
	}
	host, port := variable(kubernetesHost), variable(kubernetesPort)
	if _, err := netip.ParseAddr(host); err != nil || port == "" {
		return ""
	}
	return "https://" + net.JoinHostPort(host, port)
}

// check finds mistakes in the settings of a gateway that follows policies of a cluster.
func (k Kubernetes) check(fail func(key, format string, args ...any)) {
	if !k.Policies {
		return
	}
	u, err := url.Parse(k.Server)
	if k.Server != "" && (err != nil || u.Host == "" || *u != url.URL{Scheme: "https", Host: u.Host}) {
		fail("kubernetes.server", "%q is not a URL such as https://10.96.0.1:443", k.Server)
	}
	for _, file := range []struct{ key, path string }{{"kubernetes.token_file", k.TokenFile}, {"kubernetes.ca_file", k.CAFile}} {
		if !filepath.IsAbs(file.path) {
			fail(file.key, "%q is not an absolute path", file.path)
		}
	}
}

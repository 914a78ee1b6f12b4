package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

// ClusterServices is the entry of allowed_cidrs and denied_cidrs that stands for the service addresses of the cluster.
const ClusterServices = "cluster:services"

// Cluster has the service addresses of a Kubernetes cluster, and the domain of its names, that the operator opens to boxes whose policies
// list them. Immutable and safe for concurrent use. A nil *Cluster has neither addresses nor names.
type Cluster struct {
	domain   name.Name
	services name.Ranges
	prefixes []netip.Prefix // services, merged
}

// NewCluster returns the cluster whose names are in domain. services are masked.
func NewCluster(domain name.Name, services []netip.Prefix) *Cluster {
	c := &Cluster{domain: domain}
	for _, p := range services {
		c.services.Insert(p, ClusterServices) // not in NAT64 form: there is no translator on the way to a service
	}
	c.prefixes = c.services.Merged()
	return c
}

// Prefixes returns the service addresses, merged. They must be in the protected ranges of every policy, also where they are public addresses.
func (c *Cluster) Prefixes() []netip.Prefix {
	if c == nil {
		return nil
	}
	return c.prefixes
}

// Has reports whether a name is in the domain of the cluster, whether or not it exists.
func (c *Cluster) Has(n name.Name) bool { return c != nil && n.IsWithin(c.domain) }

// contains reports whether a canonical address is a service address.
func (c *Cluster) contains(a netip.Addr) bool {
	if c == nil {
		return false
	}
	_, in := c.services.Lookup(a)
	return in
}

// clusterEntries are the entries of a policy about the cluster. Each is the text for decisions, empty if there is no such entry.
type clusterEntries struct{ allowed, denied string }

// clusterEntriesOf returns the entries of a policy about the cluster.
func clusterEntriesOf(s Spec) (out clusterEntries) {
	if slices.Contains(s.AllowedCIDRs, ClusterServices) {
		out.allowed = ClusterServices
	}
	if slices.Contains(s.DeniedCIDRs, ClusterServices) {
		out.denied = ClusterServices
	}
	return out
}

// The rules of decisions about the cluster without an entry of the policy.
const (
	ruleClusterAddr    = "another address than the cluster's services"
	ruleClusterName    = "only names of network.cluster.domain have addresses of its services"
	ruleClusterTCP     = "services of the cluster are reached by TCP alone"
	ruleClusterService = "service address of the cluster, which the policy does not list"
)

// ClusterRemedy returns what to do about a denial with a rule about network.cluster of the configuration; "" for another rule.
func ClusterRemedy(rule string) string { return clusterRemedies[rule] }

var clusterRemedies = map[string]string{
	ruleClusterService: "a policy opens a service of the cluster by its own name and port in allowed_domains, or all services by " + ClusterServices + " in allowed_cidrs",
	ruleClusterName:    "a service of the cluster has a name in network.cluster.domain: use that, and list it in allowed_domains",
	ruleClusterAddr:    "such a name has no other address: if it is one of a service, the operator adds its range to network.cluster.services",
	ruleClusterTCP:     "no policy opens them for other protocols: use TCP",
}

// setCluster opens the cluster as far as the policy lists it: all its service addresses, or names in its domain one by one.
func (c *Compiled) setCluster(cluster *Cluster, parsed parsedSpec) {
	c.cluster = cluster
	if cluster == nil {
		for i, s := range c.spec.AllowedCIDRs {
			if s == ClusterServices {
				c.warnings = append(c.warnings, document.Problem{Pointer: document.Element("/allowed_cidrs", i),
					Message: fmt.Sprintf("%s has no effect: network.cluster of the configuration is not set", name.Quote(s))})
			}
		}
		return
	}
	named := slices.ContainsFunc(parsed.allowedDomains, func(d domain) bool { return cluster.Has(d.pattern.Name()) })
	if c.spec.Mode == ModeCustom && c.listed.denied == "" && (named || c.listed.allowed != "") {
		c.plan.Cluster = cluster.prefixes
	}
}

// InCluster reports whether a name is in the domain of the cluster.
func (c *Compiled) InCluster(n name.Name) bool { return c != nil && c.cluster.Has(n) }

// leadsToCluster reports whether a destination is in the cluster: by its name, or by its address unless the name decides where the
// connection goes. Such connections use neither an upstream proxy nor a source address of the policy.
func (c *Compiled) leadsToCluster(r Request, byName bool) bool {
	return c.cluster.Has(r.Name) || !byName && c.cluster.contains(name.CanonicalAddr(r.Addr))
}

// IsClusterAddr reports whether an address is a service address of the cluster.
func (c *Compiled) IsClusterAddr(a netip.Addr) bool {
	return c != nil && c.cluster.contains(name.CanonicalAddr(a))
}

// ClusterRange returns the range of service addresses that contains an address; zero if there is none.
func (c *Compiled) ClusterRange(a netip.Addr) netip.Prefix {
	if c != nil && c.cluster != nil {
		for _, p := range c.cluster.prefixes {
			if p.Contains(a) {
				return p
			}
		}
	}
	return netip.Prefix{}
}

// ReachesCluster reports whether the policy lists service addresses, or names, of the cluster.
func (c *Compiled) ReachesCluster() bool { return c != nil && len(c.plan.Cluster) > 0 }

// isRebound reports whether a lookup of an ordinary name has returned a service address, which only names in the cluster's domain have. Clients
// may give any name to an address that they have chosen themselves.
func (c *Compiled) isRebound(n name.Name, a netip.Addr) bool {
	return !n.IsZero() && !c.cluster.Has(n) && c.cluster.contains(a)
}

// exempts reports whether a protected address is exempt because it is a service address and the policy lists all of these. Only TCP is: it
// passes through the gateway's proxy. Addresses of the host and of boxes are never exempt.
func (c *Compiled) exempts(r Request, a netip.Addr) bool {
	if !c.cluster.contains(a) || c.protected.IsOwn(a) || !named(r) || r.Stage == StageDNS && c.isRebound(r.Name, a) {
		return false
	}
	return c.listed.allowed != "" || c.bounds && c.open
}

// judgeProtected decides about an address in a protected range. exempt reports that it is a service address that the policy lists, or that
// a ceiling without allowed lists does not deny.
func (c *Compiled) judgeProtected(r Request, a netip.Addr) (d Decision, exempt, denied bool) {
	rule, in := c.protected.Contains(a)
	if !in && c.cluster.contains(a) { // as in ceilings, whose policies protect no address
		rule, in = ruleClusterAddr, true
	}
	if !in {
		return Decision{}, false, false
	}
	if !c.exempts(r, a) {
		if c.cluster.contains(a) && !c.protected.IsOwn(a) {
			rule = c.clusterRule(r, a)
		}
		return Decision{Reason: name.ReasonProtectedRange, Rule: rule}, false, true
	}
	return Decision{}, true, false
}

// clusterRule returns why a service address is not exempt.
func (c *Compiled) clusterRule(r Request, a netip.Addr) string {
	switch {
	case !named(r):
		return ruleClusterTCP
	case r.Stage == StageDNS && c.isRebound(r.Name, a):
		return ruleClusterName
	}
	return ruleClusterService
}

// deniesCluster reports whether denied_cidrs lists the service addresses, and a is one.
func (c *Compiled) deniesCluster(a netip.Addr) (rule string, denied bool) {
	return c.listed.denied, c.listed.denied != "" && c.cluster.contains(a)
}

// decideCluster decides about a name in the domain of the cluster. Such a name is denied unless the policy lists it, by its own name or a
// wildcard below the domain, or lists all service addresses and the name has one of them. Neither "*" nor a policy without allowed lists
// opens it. It has no other addresses than the services', whatever CIDRs are allowed. Denied names and addresses win as for every
// destination. A ceiling without allowed lists permits every destination that it does not deny.
func (c *Compiled) decideCluster(r Request) Decision {
	addr := name.CanonicalAddr(r.Addr)
	if addr.IsValid() && (!c.cluster.contains(addr) || c.protected.IsOwn(addr)) {
		return Decision{Reason: name.ReasonProtectedRange, Rule: ruleClusterAddr}
	}
	if m := c.domains.match(r.Name, r.Port, r.Stage == StageDNS); m.denied {
		return Decision{Reason: name.ReasonDeniedDomain, Rule: m.denyRule}
	}
	if addr.IsValid() {
		if rule, in := c.denied.Lookup(addr); in {
			return Decision{Reason: name.ReasonDeniedCIDR, Rule: rule}
		}
		if rule, in := c.deniesCluster(addr); in {
			return Decision{Reason: name.ReasonDeniedCIDR, Rule: rule}
		}
	}
	if c.spec.Mode == ModeDenyAll {
		return Decision{Reason: name.ReasonDenyAll}
	}
	rule, listed := c.domains.allowedWithin(r.Name, c.cluster.domain, r.Port)
	switch {
	case !named(r) && addr.IsValid():
		return Decision{Reason: name.ReasonProtectedRange, Rule: ruleClusterTCP}
	case !named(r):
		return Decision{Reason: name.ReasonNotAllowed}
	case listed:
		return Decision{Verdict: Allow, Reason: name.ReasonAllowedDomain, Rule: rule, DialName: true}
	case addr.IsValid() && c.listed.allowed != "":
		return Decision{Verdict: Allow, Reason: name.ReasonAllowedCIDR, Rule: c.listed.allowed}
	case c.bounds && c.open:
		return Decision{Verdict: Allow, Reason: name.ReasonNotDenied, DialName: true}
	}
	return Decision{Reason: name.ReasonNotAllowed}
}

// allowedWithin returns the rule of the longest allowed pattern that covers a name and is for names in a domain only.
func (d *domains) allowedWithin(n, domain name.Name, port uint16) (rule string, ok bool) {
	for at := n.String(); len(at) >= len(domain.String()); {
		if node := d.nodes[at]; node != nil {
			rules := node.below.allowed
			if at == n.String() {
				rules = node.own.allowed
			}
			if rule, ok = rules.find(port); ok {
				return rule, true
			}
		}
		dot := strings.IndexByte(at, '.')
		if dot < 0 {
			return "", false
		}
		at = at[dot+1:]
	}
	return "", false
}

// text returns the domain, or "" for nil.
func (c *Cluster) text() string {
	if c == nil {
		return ""
	}
	return c.domain.String()
}

// resolvesOthers reports whether a name that the policy does not allow is resolved for its allowed addresses.
func (c *Compiled) resolvesOthers(n name.Name) bool {
	if c.cluster.Has(n) {
		return c.listed.allowed != "" && c.listed.denied == ""
	}
	return c.spec.resolvesOthers()
}

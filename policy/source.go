package policy

import (
	"fmt"
	"net/netip"

	"boxgate/policy/name"
)

// Source contains the source addresses of the host for the connections of a box, at most one of each family. With only one,
// the other family is denied. With the zero value the host chooses.
type Source struct {
	V4 netip.Addr `json:"v4,omitzero"`
	V6 netip.Addr `json:"v6,omitzero"`
}

// ParseSource parses the source addresses of a box: at most one of each family.
func ParseSource(list []string) (s Source, err error) {
	for _, text := range list {
		a, err := ParseSourceAddr(text)
		if err != nil {
			return Source{}, err
		}
		of := &s.V6
		if a.Is4() {
			of = &s.V4
		}
		if of.IsValid() {
			return Source{}, fmt.Errorf("%v and %v are of one family: give one address of each at most", *of, a)
		}
		*of = a
	}
	return s, nil
}

// ParseSourceAddr reads one source address.
func ParseSourceAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return a, fmt.Errorf("%s is not an address such as 203.0.113.7 or 2001:db8::7", name.Quote(text))
	case a.Is4In6():
		return a, fmt.Errorf("%q is an IPv4 address: use %q", text, a.Unmap())
	case a.Zone() != "" || !a.IsGlobalUnicast():
		return a, fmt.Errorf("nothing can leave the host from %s", name.Quote(text))
	}
	return a, nil
}

// For returns the source address for connections to an address; the zero Addr if the host chooses. It reports false if such
// connections are denied.
func (s Source) For(to netip.Addr) (from netip.Addr, ok bool) {
	switch {
	case s == Source{}:
		return netip.Addr{}, true
	case to.Unmap().Is4():
		return s.V4, s.V4.IsValid()
	default:
		return s.V6, s.V6.IsValid()
	}
}

// Addrs returns the addresses.
func (s Source) Addrs() (list []netip.Addr) {
	for _, a := range []netip.Addr{s.V4, s.V6} {
		if a.IsValid() {
			list = append(list, a)
		}
	}
	return list
}

// lacks contains the reason why a family is denied; "" if it is not.
type lacks struct{ v4, v6 string }

// The rules of decisions about a family without a source address.
const (
	ruleNoV4 = "no IPv4 address among the source addresses"
	ruleNoV6 = "no IPv6 address among the source addresses"
)

// setSource sets the source addresses of all traffic of the box, and denies families without a usable address. unusable returns the reason why
// an address cannot be used now, or "". setSource comes after the upstream proxies, as their connections have the same source
// addresses.
func (c *Compiled) setSource(s Source, unusable func(netip.Addr) string) {
	if s == (Source{}) {
		return
	}
	if unusable == nil {
		unusable = func(a netip.Addr) string { return "whether " + a.String() + " can be used is not known" }
	}
	l, usable := lacks{ruleNoV4, ruleNoV6}, Source{}
	if s.V4.IsValid() {
		if l.v4 = unusable(s.V4); l.v4 == "" {
			usable.V4 = s.V4
		}
	}
	if s.V6.IsValid() {
		if l.v6 = unusable(s.V6); l.v6 == "" {
			usable.V6 = s.V6
		}
	}
	c.leaveFrom(s, usable, l)
}

// leaveFrom is setSource for the policy and the policies of connections that the gateway makes for the box.
func (c *Compiled) leaveFrom(s, usable Source, l lacks) {
	c.source, c.lacks = s, l
	c.plan.Sourced, c.plan.Source = true, usable
	for _, other := range []*Compiled{c.reach, c.forwarding} {
		if other != nil {
			other.leaveFrom(s, usable, l)
		}
	}
}

// Source returns the source addresses of the box's connections.
func (c *Compiled) Source() Source {
	if c == nil {
		return Source{}
	}
	return c.source
}

// leaving denies allowed destinations without a source address of their family, except for services and the cluster, which are connected to from any
// address. Through an upstream proxy both families are allowed: the
// connection to the proxy is checked.
func (c *Compiled) leaving(r Request, d Decision) Decision {
	a := r.Addr.Unmap()
	if c.source == (Source{}) || c.upstream != nil || !a.IsValid() || r.Name.IsService() || c.leadsToCluster(r, false) {
		return d
	}
	lack := c.lacks.v6
	if a.Is4() {
		lack = c.lacks.v4
	}
	if lack == "" {
		return d
	}
	return Decision{Reason: name.ReasonSourceAddress, Rule: lack}
}

package policy

import (
	"fmt"
	"net/netip"

	"boxgate/policy/name"
)

// Source is from which addresses of the host the connections of a box leave, one for each family at most. With one alone,
// nothing of the other family leaves. The zero value leaves the choice to the host.
type Source struct {
	V4 netip.Addr `json:"v4,omitzero"`
	V6 netip.Addr `json:"v6,omitzero"`
}

// ParseSource reads the source addresses of a box: none, one, or one of each family.
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

// ParseSourceAddr reads one address that traffic can leave from.
func ParseSourceAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return a, fmt.Errorf("%q is not an address such as 203.0.113.7 or 2001:db8::7", text)
	case a.Is4In6():
		return a, fmt.Errorf("%q is an IPv4 address: use %q", text, a.Unmap())
	case a.Zone() != "" || !a.IsGlobalUnicast():
		return a, fmt.Errorf("nothing can leave the host from %q", text)
	}
	return a, nil
}

// For returns the address that connections to another leave from: the zero Addr for whichever the host chooses. It reports
// false if they must not leave at all.
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

// lacks says of each family why nothing of it leaves; "" if something does.
type lacks struct{ v4, v6 string }

// The rules of decisions on a family that a box has no source address of.
const (
	ruleNoV4 = "no IPv4 address among the source addresses"
	ruleNoV6 = "no IPv6 address among the source addresses"
)

// setSource makes everything that leaves for the box leave from the source, and denies what is of a family that it has no
// address of, or one that cannot be used now: unusable says why, or "". It comes after the upstream proxies, whose connections
// leave from there as well.
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

// leaveFrom is setSource for the policy and for those that decide about the connections made in its place.
func (c *Compiled) leaveFrom(s, usable Source, l lacks) {
	c.source, c.lacks = s, l
	c.plan.Sourced, c.plan.Source = true, usable
	for _, other := range []*Compiled{c.reach, c.forwarding} {
		if other != nil {
			other.leaveFrom(s, usable, l)
		}
	}
}

// Source returns from where the connections of the box leave.
func (c *Compiled) Source() Source {
	if c == nil {
		return Source{}
	}
	return c.source
}

// leaving denies what is allowed but has no address to leave from. What goes by an upstream proxy may be of either family: the
// connection to the proxy is judged.
func (c *Compiled) leaving(r Request, d Decision) Decision {
	a := r.Addr.Unmap()
	if c.source == (Source{}) || c.upstream != nil || !a.IsValid() {
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

package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

// Services finds the addresses of the services that the operator opens to boxes by name. Safe for concurrent use; its methods must not
// block.
type Services interface {
	// Target returns the current address and port of a service by its host name (see [name.ParseService]). It reports false if there is no
	// such service, or no address for it now.
	Target(name.Name) (at netip.AddrPort, known bool)
}

// The rules of decisions about services without an entry of the policy.
const (
	ruleNoService   = "no such service in network.services"
	ruleServicePort = "another port than the service's"
	ruleServiceAddr = "another address than the service's"
)

// setServices makes the services of the operator known. The ceiling has none: whether a service exists is decided by the policy of the box.
func (c *Compiled) setServices(s Services, parsed parsedSpec) {
	c.services = s
	for _, e := range parsed.allowedDomains {
		if e.pattern.IsService() && !slices.Contains(c.named, e.pattern.Name()) {
			c.named = append(c.named, e.pattern.Name())
		}
	}
	for i, e := range parsed.allowedDomains {
		if _, known := c.targetOf(e.pattern.Name()); e.pattern.Name().IsService() && (e.pattern.IsWildcard() || !known) {
			text := "%s has no effect: there is no such service in network.services, or its box does not exist now"
			if e.pattern.IsWildcard() {
				text = `%s has no effect: services are allowed one by one, such as "service:db"`
			}
			c.warnings = append(c.warnings, document.Problem{Pointer: document.Element("/allowed_domains", i), Message: fmt.Sprintf(text, name.Quote(e.rule))})
		}
	}
}

func (c *Compiled) targetOf(n name.Name) (at netip.AddrPort, known bool) {
	if c.services == nil {
		return at, false
	}
	return c.services.Target(n)
}

// decideService decides about a name in [name.ServiceZone]. Such a name is denied unless the policy lists it alone: neither a wildcard
// nor a policy without allowed lists opens a service. Its address is exempt from the protected ranges, with the service's port only,
// and no other address is allowed for the name. Denied names and addresses win as for every destination. A ceiling without allowed lists
// permits each service that it does not deny.
func (c *Compiled) decideService(r Request) Decision {
	d := c.decideListed(r)
	if !d.Allowed() || c.bounds {
		return d
	}
	return c.judgeTarget(r, d)
}

// decideListed is decideService for a service that exists.
func (c *Compiled) decideListed(r Request) Decision {
	m := c.domains.match(r.Name, r.Port, r.Stage == StageDNS)
	if m.denied {
		return Decision{Reason: name.ReasonDeniedDomain, Rule: m.denyRule}
	}
	addr := name.CanonicalAddr(r.Addr)
	if addr.IsValid() {
		if rule, in := c.denied.Lookup(addr); in {
			return Decision{Reason: name.ReasonDeniedCIDR, Rule: rule}
		}
	}
	if c.spec.Mode == ModeDenyAll {
		return Decision{Reason: name.ReasonDenyAll}
	}
	rule, listed := c.domains.listed(r.Name, r.Port)
	switch {
	case !named(r):
		return Decision{Reason: name.ReasonNotAllowed}
	case c.bounds && c.open:
		return Decision{Verdict: Allow, Reason: name.ReasonNotDenied, DialName: true}
	case !listed:
		return Decision{Reason: name.ReasonNotAllowed}
	}
	return Decision{Verdict: Allow, Reason: name.ReasonAllowedDomain, Rule: rule, DialName: true}
}

// judgeTarget denies a service that does not exist, and all but its address and port, which decideListed does not look at.
func (c *Compiled) judgeTarget(r Request, listed Decision) Decision {
	addr := name.CanonicalAddr(r.Addr)
	at, known := c.targetOf(r.Name)
	switch {
	case !known:
		return Decision{Reason: name.ReasonNotAllowed, Rule: ruleNoService}
	case r.Port != 0 && r.Port != at.Port():
		return Decision{Reason: name.ReasonNotAllowed, Rule: ruleServicePort}
	case addr.IsValid() && addr != name.CanonicalAddr(at.Addr()):
		return Decision{Reason: name.ReasonProtectedRange, Rule: ruleServiceAddr}
	}
	return listed
}

// DecideListed decides about a name in [name.ServiceZone] as if it were a service on the requested port. Entries of a policy outlive the
// configuration and the boxes that their services have now. Ceiling, quota and request rules are left out.
func (c *Compiled) DecideListed(r Request) Decision {
	if c == nil || c.domains == nil {
		return Decision{Reason: name.ReasonNoPolicy}
	}
	return c.decideListed(r)
}

// listed returns the rule of an allowed pattern for this name alone.
func (d *domains) listed(n name.Name, port uint16) (rule string, ok bool) {
	node := d.nodes[n.String()]
	if node == nil {
		return "", false
	}
	return node.own.allowed.find(port)
}

// ServicesOn returns the names of the services on a port, 0 for every port, that the policy allows. All of them are reached at one address of the gateway, so
// that a connection whose protocol has no host names is for the service with its port.
func (c *Compiled) ServicesOn(port uint16) (names []name.Name) {
	if c == nil {
		return nil
	}
	for _, n := range c.Enforced().named {
		if c.Decide(Request{Stage: StageConn, Name: n, Port: port, Protocol: TCP}).Allowed() {
			names = append(names, n)
		}
	}
	return names
}

package policy

import (
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// Ports with rules of their own, apart from the lists.
const (
	portDoT  = 853 // DNS over TLS (RFC 7858) and, by UDP, over QUIC (RFC 9250)
	portQUIC = 443 // HTTP/3 over UDP
)

// Rules that decisions on those ports name.
const (
	ruleQUIC = "UDP 443 while names decide on 443"
	ruleRule = "UDP on a port where a rule decides"
	ruleDoT  = "DNS over TLS only by allowed_cidrs"
	ruleDoQ  = "DNS over QUIC only by allowed_cidrs"
)

// Decide judges a destination. It never fails, does not allocate unless a path needs resolving, and is safe for
// concurrent use. What is not known yet is zero: no port and no address in a DNS query, no name in the kernel. The
// first of these that applies decides:
//
//  1. the address is protected: deny
//  2. the name matches denied_domains, or the address denied_cidrs: deny
//  3. the mode is deny-all: deny; neither name nor address is known: deny; the mode is allow-all: allow, as in 6
//  4. the address is in allowed_cidrs: allow
//  5. the name matches allowed_domains: allow, but only to an address of that name (DialName); a TCP connection
//     without a name is allowed by "*" alone, and where 6 allows one
//  6. custom with denied lists only: allow, but on a port where names matter (some are denied, or have header or request
//     rules) only to an address of the name that is given (DialName), and on 80, 443 and the ports that rules name not
//     without a name; otherwise deny
//
// What that allows is then checked against the transport (UDP where names or rules decide, DNS over TLS or QUIC,
// protocols other than TCP, UDP and ICMP) and, for a request, against the request rules. What passes all that must be
// allowed by the operator's ceiling as well, if there is one, have an address to leave from (see [Options.Source]), and not
// be withheld from the box (see [Options.Withheld]).
// A nil or zero policy denies.
func (c *Compiled) Decide(r Request) Decision {
	if c == nil || c.domains == nil {
		return Decision{Reason: name.ReasonNoPolicy}
	}
	d := c.decide(r)
	if d.Verdict == Allow && c.ceiling != nil {
		d = c.ceiling.limit(r, d)
	}
	if d.Verdict == Allow {
		d = c.leaving(r, d)
	}
	if d.Verdict == Allow && c.withheld != nil {
		d = *c.withheld
	}
	d.Version = c.version
	return d
}

// decide is Decide without the ceiling and the version.
func (c *Compiled) decide(r Request) Decision {
	d := c.decideDestination(r)
	if d.Verdict == Allow && r.Stage != StageDNS {
		d = c.decideTransport(r, d)
	}
	if d.Verdict == Allow && r.Stage == StageHTTP && len(c.rules) > 0 {
		d = c.decideRequest(r, d)
	}
	return d
}

func (c *Compiled) decideDestination(r Request) Decision {
	addr := name.CanonicalAddr(r.Addr)
	hasAddr := addr.IsValid()
	if hasAddr {
		if rule, in := c.protected.Contains(addr); in {
			return Decision{Reason: name.ReasonProtectedRange, Rule: rule}
		}
	}
	m := c.domains.match(r.Name, r.Port, r.Stage == StageDNS)
	if m.denied {
		return Decision{Reason: name.ReasonDeniedDomain, Rule: m.denyRule}
	}
	if hasAddr {
		if rule, in := c.denied.Lookup(addr); in {
			return Decision{Reason: name.ReasonDeniedCIDR, Rule: rule}
		}
	}
	switch {
	case c.spec.Mode == ModeDenyAll:
		return Decision{Reason: name.ReasonDenyAll}
	case !hasAddr && r.Name.IsZero():
		return Decision{Reason: name.ReasonNoName}
	case c.spec.Mode == ModeAllowAll:
		return c.decideOpen(r, name.ReasonAllowAll)
	}
	if hasAddr {
		if rule, in := c.allowed.Lookup(addr); in {
			return Decision{Verdict: Allow, Reason: name.ReasonAllowedCIDR, Rule: rule}
		}
	}
	if named(r) {
		if m.allowed {
			return Decision{Verdict: Allow, Reason: name.ReasonAllowedDomain, Rule: m.allowRule, DialName: true}
		}
		if rule, ok := c.anyName.find(r.Port); ok && r.Name.IsZero() {
			return c.unlessNameless(r, Decision{Verdict: Allow, Reason: name.ReasonAllowedDomain, Rule: rule})
		}
	}
	if c.open {
		return c.decideOpen(r, name.ReasonNotDenied)
	}
	return Decision{Reason: name.ReasonNotAllowed}
}

// decideOpen allows what is in no list. Where names matter, the name that a client gives must be more than a claim.
func (c *Compiled) decideOpen(r Request, why name.Reason) Decision {
	d := Decision{Verdict: Allow, Reason: why}
	switch {
	case r.Name.IsZero() || !named(r):
	case r.Stage == StageDNS:
		d.DialName = len(c.spec.DeniedDomains) > 0
	default:
		d.DialName = c.namePorts.Contains(r.Port)
	}
	return c.unlessNameless(r, d)
}

// unlessNameless denies connections without a name on ports where names matter and clients can always send one: such a
// connection might be for a denied name, or for a host with rules.
func (c *Compiled) unlessNameless(r Request, d Decision) Decision {
	if !r.Name.IsZero() || r.Stage == StageDNS || !named(r) || !c.namePorts.Contains(r.Port) {
		return d
	}
	if r.Port == name.HTTPPort || r.Port == name.HTTPSPort || c.ruledPorts.Contains(r.Port) {
		return Decision{Reason: name.ReasonNoName}
	}
	return d
}

// named reports whether the name of a destination can be relied on: TCP goes to the proxy, which dials the name. UDP
// and ICMP go to whatever address the box chose, so only the address counts.
func named(r Request) bool { return r.Stage == StageDNS || r.Protocol == TCP || r.Protocol == "" }

// decideTransport denies transports that may not be used even to an allowed destination.
func (c *Compiled) decideTransport(r Request, d Decision) Decision {
	switch r.Protocol {
	case TCP, "":
		if r.Port == portDoT && d.Reason != name.ReasonAllowedCIDR {
			return Decision{Reason: name.ReasonProtocol, Rule: ruleDoT}
		}
	case UDP:
		switch {
		case c.upstream != nil:
			return Decision{Reason: name.ReasonProtocol, Rule: ruleUpstream}
		case r.Port == portDoT && d.Reason != name.ReasonAllowedCIDR:
			return Decision{Reason: name.ReasonProtocol, Rule: ruleDoQ}
		case !c.plan.RejectUDP.Contains(r.Port):
		case r.Port == portQUIC:
			return Decision{Reason: name.ReasonProtocol, Rule: ruleQUIC}
		default:
			return Decision{Reason: name.ReasonProtocol, Rule: ruleRule}
		}
	case ICMP:
		if c.upstream != nil {
			return Decision{Reason: name.ReasonProtocol, Rule: ruleUpstream}
		}
	default:
		return Decision{Reason: name.ReasonProtocol}
	}
	return d
}

// decideRequest applies the first request rule that matches. Where any rule covers the host, a path that servers may
// read in different ways is denied whatever the rules say.
func (c *Compiled) decideRequest(r Request, d Decision) Decision {
	var j match.Request
	for i := range c.rules {
		rule := &c.rules[i]
		if !rule.Covers(r.Name, r.Port) {
			continue
		}
		if j.IsZero() {
			if j = judge(&r); j.IsAmbiguous() {
				return Decision{Reason: name.ReasonAmbiguousPath, Rule: rule.Rule}
			}
		}
		if !rule.Decides(&j) {
			continue
		}
		d.Reason, d.Rule = name.ReasonRequestRule, rule.Rule
		if rule.Deny {
			d.Verdict, d.DialName = Deny, false
		}
		return d
	}
	return d
}

// judge returns a request as matchers see it.
func judge(r *Request) match.Request { return match.NewRequest(r.Method, r.Path, r.Query, r.Fields) }

package proxy

import (
	"net/netip"
	"strings"

	"boxgate/policy"
)

// verdict is the decision on a connection, and what to do if it allows.
type verdict struct {
	request   policy.Request
	decision  policy.Decision
	intercept bool
}

// target is where an allowed connection goes. Its name is dialled when the decision was for the name, and when nothing
// else says where: the box asked for the sink, or gave a name to the explicit proxy.
func (v verdict) target(c *conn) target {
	return target{
		name: v.request.Name, orig: c.orig, port: c.port,
		byName: v.decision.DialName || v.intercept || !c.orig.Addr().IsValid(),
	}
}

// decide asks the policy about the connection and registers the outcome, so that a later policy can take it back. A
// policy that is swapped in the meantime is asked again: see liveConn.recheck.
func (c *conn) decide(f first) verdict {
	pol := c.box.Policy.Load()
	v := c.judge(pol, f)
	if !v.decision.Allowed() {
		return v
	}
	c.live.settle(v.request, passage{
		spliced: !v.intercept, asked: !v.target(c).byName, unread: f.unread(),
		nameDue: f.kind == kindBadTLS || f.kind == kindTLS && f.name.IsZero() || f.almostNamed(),
	})
	if v.request.Name.IsZero() && !c.bound.IsZero() { // it went by the address, but the name must stay allowed as well
		named := v.request
		named.Name, named.Addr = c.bound, c.orig.Addr()
		c.live.require(named)
	}
	if c.p.recheck(c.live) {
		v.decision = policy.Decision{Reason: policy.ReasonPolicyChanged, Version: version(c.box.Policy.Load())}
	}
	return v
}

// judge is the decision itself, on the grounds that the first bytes give.
func (c *conn) judge(pol *policy.Compiled, f first) verdict {
	switch e := c.evidence(pol, f); e.ground {
	case byName:
		return c.judgeName(pol, e.name)
	case byToldNames:
		return c.judgeToldNames(pol)
	default:
		return c.judgeAddress(pol, e)
	}
}

// ask puts the question to the policy.
func (c *conn) ask(pol *policy.Compiled, name policy.Name) verdict {
	v := verdict{request: policy.Request{
		Stage: policy.StageConn, Box: c.box.ID, Name: name, Addr: c.orig.Addr(), Port: c.port, Protocol: policy.TCP,
	}}
	v.decision = pol.Decide(v.request)
	return v
}

// judgeName decides by the name that the client's bytes carry, which must be the one that CONNECT gave, if it gave one.
func (c *conn) judgeName(pol *policy.Compiled, name policy.Name) verdict {
	v := c.ask(pol, name)
	v.intercept = pol.Intercepts(name, c.port)
	switch {
	case !c.bound.IsZero() && name != c.bound:
		return v.refused(policy.ReasonAuthorityMismatch)
	case v.intercept || !v.byAddress() || !c.p.ruled(c.ctx, pol, c.box, c.orig, false):
		return v
	case !resolvable(pol, c.box.ID, name):
		return v.refused(policy.ReasonAuthorityMismatch)
	default:
		v.decision.DialName = true // it goes to the owner of the name, not to the host that has the rule
		return v
	}
}

// judgeAddress decides what should carry a name and carries none, by the address alone: neither what CONNECT nor what DNS
// said about the address stands in for the name of a host that the server may find in bytes which were not understood here.
func (c *conn) judgeAddress(pol *policy.Compiled, e evidence) verdict {
	c.locate(pol)
	v := c.ask(pol, policy.Name{})
	listed := v.decision.Reason == policy.ReasonAllowedCIDR
	switch {
	case v.decision.Reason == policy.ReasonNotAllowed || v.decision.Reason == policy.ReasonNoName:
		return v.refused(e.lack)
	case !v.decision.Allowed():
		return v
	case !listed && (e.listed || pol.NamesDecide(c.port)):
		return v.refused(e.lack)
	case pol.Intercepts(c.bound, c.port) || c.p.ruled(c.ctx, pol, c.box, c.orig, false):
		return v.refused(e.lack) // the bytes might be for a host whose requests are judged
	}
	return v
}

// locate finds out where a name is that CONNECT gave: an address that the policy allows by itself, if there is one.
func (c *conn) locate(pol *policy.Compiled) {
	if c.bound.IsZero() || c.orig.Addr().IsValid() {
		return
	}
	r := policy.Request{Stage: policy.StageConn, Box: c.box.ID, Port: c.port, Protocol: policy.TCP}
	if at := c.p.allowedAddr(c.ctx, pol, c.box, c.bound, r); at.IsValid() {
		c.orig = netip.AddrPortFrom(at, c.port)
	}
}

// byAddress reports whether the connection may go to the address as it is.
func (v verdict) byAddress() bool { return v.decision.Allowed() && !v.decision.DialName }

// unread reports whether no name is known to be in what the client says: its bytes may be for any host at the address.
func (f first) unread() bool { return f.kind != kindTLS || f.name.IsZero() }

// borne reports whether unread bytes may go to whoever else is at the address that was dialled: the policy names the host
// itself, on a port where names are not the rule. Any other name may be one that the box made for the address.
func borne(d policy.Decision, port uint16) bool {
	named := d.Reason == policy.ReasonAllowedDomain && d.Rule != "*" && !strings.HasPrefix(d.Rule, "*:")
	return named && !isWeb(port)
}

// barred returns the question which addresses are those of hosts whose requests are judged, for a connection whose bytes
// nobody reads: under another name, or none, they must not go there. It is nil if the connection may go anywhere.
func (c *conn) barred(f first, v verdict) func(netip.AddrPort) bool {
	if !f.unread() || borne(v.decision, c.port) {
		return nil
	}
	return func(to netip.AddrPort) bool { return c.p.ruled(c.ctx, c.box.Policy.Load(), c.box, to, false) }
}

// evades reports whether what could name a host and does not goes past what names decide on the port: only an entry for
// its address allows it there.
func evades(pol *policy.Compiled, d policy.Decision, port uint16) bool {
	return d.Allowed() && !d.DialName && d.Reason != policy.ReasonAllowedCIDR && pol.NamesDecide(port)
}

// resolvable reports whether a name may be asked of the upstream DNS servers for the box.
func resolvable(pol *policy.Compiled, box policy.BoxID, name policy.Name) bool {
	return pol.Decide(policy.Request{Stage: policy.StageDNS, Box: box, Name: name}).Allowed() || pol.ResolvesOthers()
}

// judgeToldNames decides a protocol of its own, which names no host: by the name that CONNECT gave, else by those for which
// the box was told the address, else by the address alone.
func (c *conn) judgeToldNames(pol *policy.Compiled) verdict {
	var denied *verdict
	for _, n := range c.impliedNames() {
		v := c.ask(pol, n)
		if v.decision.Allowed() && pol.Intercepts(n, c.port) {
			v = v.refused(policy.ReasonProtocol) // what cannot be read must not pass where requests are judged
		}
		if v.decision.Allowed() {
			return v
		}
		if denied == nil || v.decision.Reason != policy.ReasonNotAllowed {
			denied = &v
		}
	}
	// A name that is denied, not just absent from the list, is denied at its address too.
	if denied != nil && (denied.decision.Reason != policy.ReasonNotAllowed || !c.bound.IsZero()) {
		return *denied
	}
	v := c.ask(pol, policy.Name{})
	switch {
	case v.byAddress() && c.p.ruled(c.ctx, pol, c.box, c.orig, false):
		return v.refused(policy.ReasonProtocol)
	case v.decision.Allowed() || denied == nil:
		return v
	}
	return *denied
}

// refused denies for a reason of the data path.
func (v verdict) refused(why policy.Reason) verdict {
	v.decision = policy.Decision{Reason: why, Version: v.decision.Version}
	v.intercept = false
	return v
}

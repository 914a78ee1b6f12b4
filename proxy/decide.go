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
		hidden: f.kind == kindBadTLS || f.kind == kindTLS && v.request.Name.IsZero(),
	})
	if c.p.recheck(c.live) {
		v.decision = policy.Decision{Reason: policy.ReasonPolicyChanged, Version: version(c.box.Policy.Load())}
	}
	return v
}

// judge is the decision itself, by what the first bytes are.
func (c *conn) judge(pol *policy.Compiled, f first) verdict {
	switch f.kind {
	case kindTLS:
		return c.judgeTLS(pol, f)
	case kindBadTLS:
		return c.unread(pol, onlyByAddress(c.ask(pol, c.bound)))
	default:
		v := c.judgeUnnamed(pol)
		if evades(pol, v.decision, c.port) && (almostHTTP(f) || almostTLS(f)) {
			return v.refused(policy.ReasonProtocol)
		}
		return v
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

// judgeTLS decides by the SNI, which must be the name that CONNECT gave, if it gave one.
func (c *conn) judgeTLS(pol *policy.Compiled, f first) verdict {
	if !c.bound.IsZero() && f.sni != "" && f.name != c.bound {
		return c.ask(pol, f.name).refused(policy.ReasonAuthorityMismatch)
	}
	name := f.name
	if name.IsZero() {
		name = c.bound
	}
	v := c.ask(pol, name)
	v.intercept = pol.Intercepts(name, c.port)
	switch {
	case v.intercept && f.name.IsZero(): // the certificate could be for nothing the client asked for
		return v.refused(policy.ReasonNoName)
	case v.decision.Reason == policy.ReasonNotAllowed && name.IsZero():
		return v.refused(policy.ReasonNoName)
	case name.IsZero() && evades(pol, v.decision, c.port):
		return v.refused(policy.ReasonNoName)
	case v.intercept || !v.byAddress() || !c.p.ruled(c.ctx, pol, c.box, c.orig, false):
		return v
	case name.IsZero():
		return v.refused(policy.ReasonNoName)
	case !resolvable(pol, c.box.ID, name):
		return v.refused(policy.ReasonAuthorityMismatch)
	default:
		v.decision.DialName = true // it goes to the owner of the name, not to the host that has the rule
		return v
	}
}

// byAddress reports whether the connection may go to the address as it is.
func (v verdict) byAddress() bool { return v.decision.Allowed() && !v.decision.DialName }

// unread refuses bytes without a name to an address of a host whose requests are judged: they might be for that host.
func (c *conn) unread(pol *policy.Compiled, v verdict) verdict {
	if v.byAddress() && c.p.ruled(c.ctx, pol, c.box, c.orig, false) {
		return v.refused(policy.ReasonProtocol)
	}
	return v
}

// unread reports whether no name is known to be in what the client says: its bytes may be for any host at the address.
func (f first) unread() bool { return f.kind != kindTLS || f.name.IsZero() }

// borne reports whether unread bytes may go to whoever else is at the address that was dialled: the policy names the host
// itself, on a port where names are not the rule. Any other name may be one that the box made for the address.
func borne(d policy.Decision, port uint16) bool {
	named := d.Reason == policy.ReasonAllowedDomain && d.Rule != "*" && !strings.HasPrefix(d.Rule, "*:")
	return named && port != 80 && port != 443
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

// judgeUnnamed decides what carries no name: by the name CONNECT gave, or where the server may speak first by the names
// the address was given out for, or by the address alone.
func (c *conn) judgeUnnamed(pol *policy.Compiled) verdict {
	if (c.port == 80 || c.port == 443) && c.bound.IsZero() {
		v := c.ask(pol, policy.Name{})
		if v.decision.Reason == policy.ReasonNotAllowed {
			return v.refused(policy.ReasonNoName)
		}
		return c.unread(pol, v)
	}
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
	if v := c.ask(pol, policy.Name{}); v.decision.Allowed() || denied == nil {
		return c.unread(pol, v)
	}
	return *denied
}

// onlyByAddress refuses what allowed_cidrs alone could allow: bytes that claim to be TLS and hide their name.
func onlyByAddress(v verdict) verdict {
	if v.decision.Allowed() && v.decision.Reason != policy.ReasonAllowedCIDR || v.decision.Reason == policy.ReasonNotAllowed {
		return v.refused(policy.ReasonProtocol)
	}
	return v
}

// refused denies for a reason of the data path.
func (v verdict) refused(why policy.Reason) verdict {
	v.decision = policy.Decision{Reason: why, Version: v.decision.Version}
	v.intercept = false
	return v
}

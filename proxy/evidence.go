package proxy

import "boxgate/policy"

// This file says of a connection what the policy must know to route it. docs/first-bytes.md has the whole table.

// question is what the policy is asked about a connection whose first bytes are f. It is the same however the connection
// came: what a client of the explicit proxy says in a tunnel means what it means without one.
func (c *conn) question(f first) (policy.Request, policy.Evidence) {
	r := c.asks(f.name)
	e := policy.Evidence{Opening: f.opening(), Bound: c.bound}
	begunTLS := f.kind == kindTLS || f.kind == kindBadTLS // for which the names that the box was told say nothing
	if c.bound.IsZero() && r.Addr.IsValid() && !begunTLS {
		e.Told = c.p.cfg.Resolver.GrantedNames(c.box.ID, r.Addr)
	}
	return r, e
}

// asks is where the connection wants to go, for a name.
func (c *conn) asks(name policy.Name) policy.Request {
	return policy.Request{
		Stage: policy.StageConn, Box: c.box.ID, Name: name, Addr: c.orig.Addr(), Port: c.port, Protocol: policy.TCP,
	}
}

// opening says what the first bytes are. HTTP/1 is not asked about here: its requests are routed one by one.
func (f first) opening() policy.Opening {
	switch f.kind {
	case kindTLS:
		return policy.OpeningTLS
	case kindSilent:
		if f.eof {
			return policy.OpeningEnded
		}
		return policy.OpeningSilent
	case kindPartial:
		return policy.OpeningPartial
	case kindOther:
		if f.almostNamed() {
			return policy.OpeningLenient
		}
		return policy.OpeningOther
	default:
		return policy.OpeningUnreadable
	}
}

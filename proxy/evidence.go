package proxy

import (
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/peek"
)

// This file collects what the policy needs to know about a connection to route it. The full table is in
// docs/first-bytes.md.

// question returns the policy question for a connection whose first bytes are f. It does not depend on how the
// connection arrived: first bytes in a tunnel of the explicit proxy are treated like any others.
func (c *conn) question(f peek.First) (policy.Request, policy.Evidence) {
	r := c.asks(f.Name)
	e := policy.Evidence{Opening: f.Opening(), Bound: c.bound}
	begunTLS := f.Kind == peek.TLS || f.Kind == peek.BadTLS // names resolved by the box are no evidence here
	if c.bound.IsZero() && r.Addr.IsValid() && !begunTLS {
		e.Told = c.p.cfg.Resolver.GrantedNames(c.box.ID, r.Addr)
	}
	return r, e
}

// asks returns the destination that the connection asks for, under a name.
func (c *conn) asks(name name.Name) policy.Request {
	return policy.Request{
		Stage: policy.StageConn, Box: c.box.ID, Name: name, Addr: c.orig.Addr(), Port: c.port, Protocol: policy.TCP,
	}
}

package proxy

import (
	"boxgate/policy"
	"boxgate/proxy/peek"
)

// This file says of a connection what the policy must know to route it. docs/first-bytes.md has the whole table.

// question is what the policy is asked about a connection whose first bytes are f. It is the same however the connection
// came: what a client of the explicit proxy says in a tunnel means what it means without one.
func (c *conn) question(f peek.First) (policy.Request, policy.Evidence) {
	r := c.asks(f.Name)
	e := policy.Evidence{Opening: f.Opening(), Bound: c.bound}
	begunTLS := f.Kind == peek.TLS || f.Kind == peek.BadTLS // for which the names that the box was told say nothing
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

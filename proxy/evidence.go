package proxy

import (
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/peek"
)

// This file collects the evidence for routing a connection. The full table is in docs/first-bytes.md.

// evidence returns the policy request and evidence for a connection whose first bytes are f. They do not depend on how the
// connection arrived: first bytes in a tunnel of the explicit proxy are treated like any others.
func (c *conn) evidence(f peek.First) (policy.Request, policy.Evidence) {
	r := c.connRequest(f.Name)
	e := policy.Evidence{Opening: f.Opening(), Bound: c.bound}
	begunTLS := f.Kind == peek.TLS || f.Kind == peek.BadTLS // names resolved by the box are no evidence here
	if c.bound.IsZero() && r.Addr.IsValid() && !begunTLS {
		e.Told = c.p.cfg.Resolver.GrantedNames(c.box.ID, r.Addr)
	}
	return r, e
}

// connRequest returns the requested destination of the connection, under the given name.
func (c *conn) connRequest(name name.Name) policy.Request {
	return policy.Request{
		Stage: policy.StageConn, Box: c.box.ID, Name: name, Addr: c.orig.Addr(), Port: c.port, Protocol: policy.TCP,
	}
}

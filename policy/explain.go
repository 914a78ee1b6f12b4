package policy

import "boxgate/policy/name"

// Unseen says what of a request the rules for its host look at, and is not known.
type Unseen struct{ Query, Headers bool }

// Explain decides a destination as [Compiled.Decide] does, and a request by the header rules as well, as it would be over TLS.
// If a part of a request is unknown that rules look at, another query or other headers may be decided otherwise. knowsQuery says
// that an empty query is known to be empty.
func (c *Compiled) Explain(r Request, knowsQuery bool) (Decision, Unseen) {
	d := c.Decide(r)
	if c == nil || r.Stage != StageHTTP {
		return d, Unseen{}
	}
	var header Decision
	if d.Allowed() && r.Port != name.HTTPPort {
		if _, header = c.HeaderRule(r); header.Reason != "" {
			d = header
		}
	}
	return d, Unseen{
		Query:   r.Query == "" && !knowsQuery && c.looksAtQuery(r.Name, r.Port),
		Headers: r.Fields == nil && c.Needs(r.Name, r.Port) != nil,
	}
}

// looksAtQuery reports whether rules for a host look at queries.
func (c *Compiled) looksAtQuery(n name.Name, port uint16) bool {
	if of := c.headers.find(n, port); of != nil {
		for i := range of.list {
			if of.list[i].match.LooksAtQuery() {
				return true
			}
		}
	}
	for i := range c.rules {
		if r := &c.rules[i]; r.Match.LooksAtQuery() && r.Covers(n, port) {
			return true
		}
	}
	return false
}

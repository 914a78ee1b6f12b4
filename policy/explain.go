package policy

import "boxgate/policy/name"

// Unseen reports the unknown parts of a request that the rules for its host look at.
type Unseen struct{ Query, Headers, Body bool }

// Explanation is a decision with the reasons for it.
type Explanation struct {
	Decision
	Unseen Unseen   // parts of the request that may change the decision
	Beaten []string // entries of the policy for the destination that would have decided otherwise, and did not take precedence
}

// Explain is [Compiled.Decide], followed for requests by the header rules as over TLS. If a part of the request that rules look at is unknown,
// another query or other headers may change the decision. knowsQuery reports that an empty query is known to be empty.
func (c *Compiled) Explain(r Request, knowsQuery bool) Explanation {
	e := Explanation{Decision: c.Decide(r)}
	if c == nil {
		return e
	}
	e.Beaten = c.beaten(r, e.Decision)
	if r.Stage != StageHTTP {
		return e
	}
	if e.Allowed() && r.Port != name.HTTPPort {
		if _, header := c.HeaderRule(r); header.Reason != "" {
			e.Decision, e.Beaten = header, nil
		}
	}
	e.Unseen = Unseen{
		Query:   r.Query == "" && !knowsQuery && c.looksAtQuery(r.Name, r.Port),
		Headers: r.Fields == nil && c.Needs(r.Name, r.Port) != nil,
		Body:    e.Unread != 0,
	}
	return e
}

// beaten returns the most specific name and the most specific range of the list opposed to a decision by an entry of the policy that cover
// the destination.
func (c *Compiled) beaten(r Request, d Decision) (entries []string) {
	names, ranges := c.spec.AllowedDomains, c.spec.AllowedCIDRs
	switch {
	case IsOfCeiling(d.Rule):
		return nil
	case d.Reason == name.ReasonAllowedDomain || d.Reason == name.ReasonAllowedCIDR:
		names, ranges = c.spec.DeniedDomains, c.spec.DeniedCIDRs
	case d.Reason != name.ReasonDeniedDomain && d.Reason != name.ReasonDeniedCIDR:
		return nil
	}
	var longest name.Pattern
	for _, s := range names {
		if p, err := name.ParsePattern(s); err == nil && p.Match(r.Name, r.Port) && (longest.IsZero() || longest.WithPort(0).Covers(p)) {
			longest, entries = p, []string{s}
		}
	}
	addr, bits := name.CanonicalAddr(r.Addr), -1
	var narrowest string
	for _, s := range ranges {
		p, err := name.ParseCIDR(s)
		if err == nil && (p.Contains(addr) || p.Contains(name.Untranslated(addr))) && p.Bits() > bits {
			narrowest, bits = s, p.Bits()
		}
	}
	if bits >= 0 {
		entries = append(entries, narrowest)
	}
	return entries
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

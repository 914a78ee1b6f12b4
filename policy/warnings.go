package policy

import (
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
)

// newWarnings returns the warnings about entries without effect and rules with unintended consequences.
func (c *Compiled) newWarnings(parsed parsedSpec, headers []HeaderRule) []document.Problem {
	var ps document.Problems
	c.warnDomains(&ps)
	c.warnCIDRs(&ps)
	c.warnPrecedence(parsed, &ps)
	if c.spec.Mode == ModeCustom && c.spec.DNS == DNSResolve && len(c.spec.AllowedCIDRs) == 0 {
		ps.Add("/dns", `"resolve" returns only addresses inside allowed_cidrs, and there are none`)
	}
	c.warnPaths(&ps)
	c.warnRules(&ps)
	warnAlternatives(headers, &ps)
	for _, h := range headers {
		c.warnProxyLogin(h, &ps)
		if !h.Applies() {
			continue
		}
		at := document.Pointer("/attach_headers", h.Pattern.String())
		if why := c.neverApplies(h, parsed); why != "" {
			ps.Add(at, "can never apply: %s", why)
		}
		c.warnPlain(at, h, parsed, &ps)
		for _, e := range h.Effects {
			if w, ok := e.(rule.Warner); ok {
				w.Warn(at, h.Scrub, &ps)
			}
		}
	}
	return ps.List
}

// warnProxyLogin warns of a login for the upstream proxy of the policy that is for another scheme.
func (c *Compiled) warnProxyLogin(h HeaderRule, ps *document.Problems) {
	p, u, login := h.key(), c.upstream, h.OnConnections().Proxy
	if login == nil || u == nil || u.Name != p.Name() || u.Port != p.Port() || login.IsFor(string(u.Scheme)) {
		return
	}
	ps.Add(document.Pointer("/attach_headers", h.Pattern.String()), "is not given to the upstream_proxy, which the policy has spoken to by %s: a login is for https unless its scheme says otherwise", u.Scheme)
}

// warnPlain warns of a rule that denies or forwards while the policy allows its host over plain HTTP, where header rules do not apply.
func (c *Compiled) warnPlain(at string, h HeaderRule, parsed parsedSpec, ps *document.Problems) {
	p := h.key()
	does := ""
	switch {
	case p.Port() != name.HTTPSPort:
		return
	case h.Deny:
		does = "denies"
	case h.OnConnections().Redirect != nil:
		does = "forwards"
	default:
		return
	}
	plain := HeaderRule{Pattern: p.WithPort(name.HTTPPort)}
	judged := slices.ContainsFunc(c.rules, func(r match.CompiledRule) bool { return r.Covers(p.Name(), name.HTTPPort) })
	if !judged && c.neverApplies(plain, parsed) == "" {
		ps.Add(at, "%s requests over TLS alone, and the policy allows the host over plain HTTP as well: deny those by rules of the policy", does)
	}
}

func (c *Compiled) warnDomains(ps *document.Problems) {
	for i, s := range c.spec.AllowedDomains {
		p, err := name.ParsePattern(s)
		if err == nil && (c.domains.specific && c.domains.outranked(p) || !c.domains.specific && c.domains.deniesWhole(p)) {
			ps.Add(document.Element("/allowed_domains", i), "%s is denied by denied_domains, which wins", name.Quote(s))
		}
	}
}

func (c *Compiled) warnCIDRs(ps *document.Problems) {
	for i, s := range c.spec.AllowedCIDRs {
		p, err := name.ParseCIDR(s)
		if err != nil {
			continue
		}
		if rule, in := c.protected.CoveredBy(p); in {
			ps.Add(document.Element("/allowed_cidrs", i), "%s is in a protected range, which no policy opens: %s", name.Quote(s), protectedBy(rule))
		} else if rule, in := c.denied.CoveredBy(p); in {
			ps.Add(document.Element("/allowed_cidrs", i), "%s is denied by %s in denied_cidrs, which wins", name.Quote(s), name.Quote(rule))
		}
	}
}

// warnPrecedence warns of a precedence without exceptions, and of a policy that allows nothing but exceptions.
func (c *Compiled) warnPrecedence(parsed parsedSpec, ps *document.Problems) {
	if !c.domains.specific {
		return
	}
	excepted := 0
	for _, e := range parsed.allowedDomains {
		if c.domains.excepts(e.pattern) {
			excepted++
		}
	}
	var denied name.Ranges
	for _, e := range parsed.deniedCIDRs {
		denied.AddDenied(e.prefix, "")
	}
	for _, e := range parsed.allowedCIDRs {
		if denied.CoversLonger(e.prefix) {
			excepted++
		}
	}
	switch excepted {
	case 0:
		ps.Add("/precedence", `"specific" has no effect: no entry of an allowed list is an exception from a denied entry`)
	case len(parsed.allowedDomains) + len(parsed.allowedCIDRs):
		ps.Add("/precedence", `every allowed entry is an exception from a denied one, and what is in no list is denied: to allow the rest too, add "*" to allowed_domains, or wider ranges to allowed_cidrs`)
	}
}

// warnPaths warns of paths that match no request, since requests with such a path are refused.
func (c *Compiled) warnPaths(ps *document.Problems) {
	for i, rule := range c.spec.Rules {
		for k, path := range rule.Paths {
			plain, prefix := strings.CutSuffix(path, "*")
			if prefix && plain != "" {
				plain += "x"
			}
			if plain != "" && match.IsAmbiguous(plain) {
				ps.Add(document.Element(document.Element("/rules", i)+"/paths", k), "%s matches nothing: such paths are refused where a rule covers the host", name.Quote(path))
			}
		}
	}
}

func protectedBy(rule string) string {
	if rule == "" {
		return "all addresses are protected"
	}
	return rule
}

// neverApplies returns the reason why a header rule covers no connection that the policy allows; "" if it covers one.
func (c *Compiled) neverApplies(h HeaderRule, parsed parsedSpec) string {
	if c.spec.Mode == ModeDenyAll {
		return "the policy denies everything"
	}
	p := h.key()
	if p.Name().IsLoopback() {
		return "TLS is never terminated for the host's own names"
	}
	if h.OnConnections().Login != nil && c.judgesRequests(p.Name(), p.Port()) {
		return "a request rule covers it, and what is no request is refused there"
	}
	if c.open || len(parsed.allowedCIDRs) > 0 {
		if c.domains.deniesWhole(p) {
			return "denied_domains covers it"
		}
		if p.Port() == portDoT && len(parsed.allowedCIDRs) == 0 {
			return "port 853 is for allowed_cidrs alone"
		}
		return ""
	}
	why := "allowed_domains does not allow it"
	for _, d := range parsed.allowedDomains {
		common, ok := intersect(d.pattern, p)
		if !ok {
			continue
		}
		switch {
		case c.domains.deniesWhole(common):
			why = "denied_domains covers what allowed_domains allows of it"
		case c.headers.shadows(common, p):
			why = "a more specific header rule covers what allowed_domains allows of it"
		case p.Port() == portDoT:
			why = "port 853 is for allowed_cidrs alone"
		default:
			return ""
		}
	}
	return why
}

// intersect returns the pattern of the hosts that both p and q cover, with the port of q; ok is false without such hosts.
func intersect(p, q name.Pattern) (common name.Pattern, ok bool) {
	full := p.WithDefaultPort(q.Port())
	switch {
	case full.Port() != q.Port():
		return name.Pattern{}, false
	case full.Covers(q):
		return q, true
	case q.Covers(full):
		return full, true
	}
	return name.Pattern{}, false
}

// warnAlternatives warns of alternatives that come after one that covers all their requests. Alternatives are adjacent.
func warnAlternatives(headers []HeaderRule, ps *document.Problems) {
	first := 0
	for i, h := range headers {
		if h.Pattern != headers[first].Pattern {
			first = i
		}
		at := document.Pointer("/attach_headers", h.Pattern.String())
		if i > first || i+1 < len(headers) && headers[i+1].Pattern == h.Pattern {
			at = document.Element(at, i-first)
		}
		if h.Match != nil {
			match.Warn(at+"/match", *h.Match, ps)
		}
		for k := first; k < i; k++ {
			if match.Covers(headers[k].Match, h.Match) {
				ps.Add(at, "can never apply: number %d of the host, which comes before it, is for all of its requests", k-first)
				break
			}
		}
	}
}

// warnRules warns of request rules that come after one that decides all their requests.
func (c *Compiled) warnRules(ps *document.Problems) {
	for i, r := range c.spec.Rules {
		at := document.Element("/rules", i)
		for k, method := range r.Methods {
			match.WarnMethod(document.Element(at+"/methods", k), method, ps)
		}
		if r.Match != nil {
			match.Warn(at+"/match", *r.Match, ps)
		}
		for k := range i {
			if c.spec.Rules[k].DecidesAllOf(r) {
				ps.Add(at, "can never apply: number %d, which comes before it, decides all of its requests", k)
				break
			}
		}
	}
}

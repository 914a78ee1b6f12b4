package dialect

import (
	"encoding/json"
	"slices"
	"strings"

	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
	"boxgate/rule/forward"
	"boxgate/rule/header"
)

// ParseVercel reads a network policy in the dialect of Vercel Sandbox and translates it:
//
//	"allow-all" | "deny-all" | {allow: [domain…] | {domain: [{match, transform: [{headers}] | forwardURL | response}…]}, subnets: {allow: [cidr…], deny: [cidr…]}}
//
// In Vercel's dialect destinations in no list are denied: {} and a policy with only denied subnets deny everything. Denied
// subnets win over everything, allowed subnets over domains. The first rule of a domain that matches a request applies, and the
// first domain that covers a host. Rules with transforms, a forwardURL or a response become header rules, as alternatives in their
// order; a response becomes a rule that denies. Headers on "*", and responses other than the gateway's own 403, are refused. The
// error is an *[document.InvalidError] that lists every problem.
func ParseVercel(data []byte) (policy.Spec, []policy.HeaderRule, error) {
	var ps document.Problems
	doc, ok := document.Parse(data, &ps)
	if !ok {
		return policy.Spec{}, nil, ps.Err()
	}
	return translateVercel(doc, &ps)
}

// isVercel reports whether a document is in Vercel's dialect rather than boxgate's.
func isVercel(doc document.Value) bool {
	return doc.Kind == document.Text || !doc.Has("mode") && (doc.Has("allow") || doc.Has("subnets"))
}

func translateVercel(doc document.Value, ps *document.Problems) (policy.Spec, []policy.HeaderRule, error) {
	var spec policy.Spec
	var hosts []vercelHost
	if doc.Kind == document.Text {
		spec.Mode = policy.Mode(doc.Text)
		if spec.Mode != policy.ModeAllowAll && spec.Mode != policy.ModeDenyAll {
			ps.Add("", `%s is no policy; use "allow-all", "deny-all" or an object with allow`, name.Quote(doc.Text))
		}
		return vercelResult(spec, nil, ps)
	}
	doc.Fields("", `"allow-all", "deny-all" or an object with allow`, ps, map[string]func(string, document.Value){
		"allow":   func(at string, v document.Value) { hosts = readVercelAllow(at, v, ps) },
		"subnets": func(at string, v document.Value) { readVercelSubnets(at, v, &spec, ps) },
	})
	for _, h := range hosts {
		spec.AllowedDomains = append(spec.AllowedDomains, h.host)
	}
	spec.Mode = policy.ModeCustom
	if len(spec.AllowedDomains)+len(spec.AllowedCIDRs) == 0 {
		spec = policy.Spec{Mode: policy.ModeDenyAll}
	}
	return vercelResult(spec, hosts, ps)
}

func vercelResult(spec policy.Spec, hosts []vercelHost, ps *document.Problems) (policy.Spec, []policy.HeaderRule, error) {
	headers := vercelHeaders(hosts, ps)
	if err := ps.Err(); err != nil {
		return policy.Spec{}, nil, err
	}
	return spec, headers, nil
}

func readVercelSubnets(at string, v document.Value, spec *policy.Spec, ps *document.Problems) {
	list := func(to *[]string) func(string, document.Value) {
		return func(at string, v document.Value) {
			*to = v.AsStrings(at, ps)
			readCIDRs(at, *to, ps)
			if len(*to) == 0 {
				*to = nil
			}
		}
	}
	v.Fields(at, "an object with allow and deny", ps, map[string]func(string, document.Value){
		"allow": list(&spec.AllowedCIDRs),
		"deny":  list(&spec.DeniedCIDRs),
	})
}

// vercelHost is one domain of allow with its rules, in their order.
type vercelHost struct {
	at      string
	host    string
	pattern name.Pattern
	rules   []policy.HeaderRule
}

// readVercelAllow reads both forms of allow, in the order written.
func readVercelAllow(at string, v document.Value, ps *document.Problems) []vercelHost {
	var hosts []vercelHost
	switch v.Kind {
	case document.List:
		for i, s := range v.AsStrings(at, ps) {
			hosts = append(hosts, vercelHost{at: document.Element(at, i), host: s})
		}
	case document.Object:
		if ps.TooMany(at, len(v.Items), policy.MaxEntries) {
			return nil
		}
		for i, host := range v.Keys {
			at := document.Pointer(at, host)
			hosts = append(hosts, vercelHost{at: at, host: host, rules: readVercelRules(at, v.Items[i], ps)})
		}
	default:
		ps.Add(at, "is %s; want a list of domains, or an object with rules for each", v.Kind)
	}
	if ps.TooMany(at, len(hosts), policy.MaxEntries) {
		return nil
	}
	for i := range hosts {
		hosts[i].pattern, _ = ps.Pattern(hosts[i].at, hosts[i].host)
	}
	return hosts
}

// readVercelRules reads the rules of a domain. It checks rules after one for every request, but drops them, as they never
// apply.
func readVercelRules(at string, v document.Value, ps *document.Problems) (rules []policy.HeaderRule) {
	if v.Kind != document.List {
		ps.Add(at, "is %s; want a list of rules", v.Kind)
		return nil
	}
	if ps.TooMany(at, len(v.Items), policy.MaxAlternatives) {
		return nil
	}
	last := false
	for i, item := range v.Items {
		rule := readVercelRule(document.Element(at, i), item, ps)
		if !last {
			rules = append(rules, rule)
		}
		last = last || rule.Match == nil
	}
	return rules
}

func readVercelRule(at string, v document.Value, ps *document.Problems) (rule policy.HeaderRule) {
	v.Fields(at, "an object with transform, forwardURL or response", ps, map[string]func(string, document.Value){
		"transform": func(at string, v document.Value) {
			rule.Effects = append(rule.Effects, setting(readVercelTransforms(at, v, ps))...)
		},
		"match": func(at string, v document.Value) {
			before := len(ps.List)
			if m := readVercelMatch(at, v, ps); !m.IsZero() || m.Methods != nil {
				if rule.Match = m; len(ps.List) == before {
					checkVercelMatch(at, *m, ps)
				}
			}
		},
		"forwardURL": func(at string, v document.Value) {
			rule.Effects = append(rule.Effects, readVercelForward(at, v, ps)...)
		},
		"response": func(at string, v document.Value) { rule.Deny = readVercelResponse(at, v, ps) },
	})
	actions := 0
	for _, key := range []string{"transform", "forwardURL", "response"} {
		if v.Has(key) {
			actions++
		}
	}
	if v.Kind == document.Object && actions != 1 {
		ps.Add(at, "has %d of transform, forwardURL and response; give one of them", actions)
	}
	return rule
}

// readVercelResponse reads a response that replaces the server's. The gateway sends its own 403.
func readVercelResponse(at string, v document.Value, ps *document.Problems) bool {
	own := func(at string, _ document.Value) {
		ps.Add(at, "the gateway says itself why it refuses a request; leave it out")
	}
	v.Fields(at, "an object with statusCode", ps, map[string]func(string, document.Value){
		"statusCode": func(at string, v document.Value) {
			if v.Kind != document.Number || v.Text != "403" {
				ps.Add(at, "the gateway refuses requests with 403; use 403")
			}
		},
		"headers": own, "body": own, "contentType": own,
	})
	if v.Kind == document.Object && !v.Has("statusCode") {
		ps.Add(at, "has no statusCode; use 403")
	}
	return true
}

// checkVercelMatch checks a match, with the member names of Vercel's dialect in pointers.
func checkVercelMatch(at string, m match.Match, ps *document.Problems) {
	var own document.Problems
	match.Compile("", m, &own)
	for _, p := range own.List {
		where := p.Pointer
		for ours, theirs := range map[string]string{"/methods": "/method", "/query": "/queryString", "/path/prefix": "/path/startsWith"} {
			if rest, ok := strings.CutPrefix(p.Pointer, ours); ok {
				where = theirs + rest
			}
		}
		ps.Add(at+where, "%s", p.Message)
	}
}

// readVercelMatch reads a match in Vercel's dialect.
func readVercelMatch(at string, v document.Value, ps *document.Problems) *match.Match {
	var m match.Match
	v.Fields(at, "an object with method, path, queryString and headers", ps, map[string]func(string, document.Value){
		"method":      func(at string, v document.Value) { m.Methods = v.AsStrings(at, ps) },
		"path":        func(at string, v document.Value) { m.Path = readVercelMatcher(at, v, ps) },
		"queryString": func(at string, v document.Value) { m.Query = readVercelPairs(at, v, ps) },
		"headers":     func(at string, v document.Value) { m.Headers = readVercelPairs(at, v, ps) },
	})
	return &m
}

func readVercelMatcher(at string, v document.Value, ps *document.Problems) *match.Matcher {
	var m match.Matcher
	text := func(to **string) func(string, document.Value) {
		return func(at string, v document.Value) {
			s := v.AsString(at, ps)
			*to = &s
		}
	}
	v.Fields(at, "an object with exact, startsWith or regex", ps, map[string]func(string, document.Value){
		"exact": text(&m.Exact), "startsWith": text(&m.Prefix), "regex": text(&m.Regex),
	})
	return &m
}

func readVercelPairs(at string, v document.Value, ps *document.Problems) (out match.Pairs) {
	if v.Kind != document.List {
		ps.Add(at, "is %s; want a list of objects with key and value", v.Kind)
		return out
	}
	for i, item := range v.Items {
		at := document.Element(at, i)
		pair := match.Pair{Key: *match.Prefix("")} // without a key any name matches
		item.Fields(at, "an object with key and value", ps, map[string]func(string, document.Value){
			"key":   func(at string, v document.Value) { pair.Key = *readVercelMatcher(at, v, ps) },
			"value": func(at string, v document.Value) { pair.Value = readVercelMatcher(at, v, ps) },
		})
		out.Pairs = append(out.Pairs, pair)
	}
	return out
}

func readVercelTransforms(at string, v document.Value, ps *document.Problems) (headers []header.Header) {
	if v.Kind != document.List {
		ps.Add(at, "is %s; want a list of transforms", v.Kind)
		return nil
	}
	for i, item := range v.Items {
		item.Fields(document.Element(at, i), "an object with headers", ps, map[string]func(string, document.Value){
			"headers": func(at string, v document.Value) {
				headers = overlayHeaders(headers, header.ReadPlain(at, v, ps))
			},
		})
	}
	ps.TooMany(at, len(headers), header.MaxHeaders)
	header.Sort(headers)
	return headers
}

// setting returns the effect that sets headers, if there are any.
func setting(headers []header.Header) []rule.Effect {
	if len(headers) == 0 {
		return nil
	}
	return []rule.Effect{header.New(headers)}
}

// overlayHeaders returns headers with those of a later transform, which replace earlier ones.
func overlayHeaders(headers, later []header.Header) []header.Header {
	headers = slices.DeleteFunc(headers, func(h header.Header) bool {
		return slices.ContainsFunc(later, func(l header.Header) bool { return match.FoldHeader(l.Name) == match.FoldHeader(h.Name) })
	})
	return append(headers, later...)
}

// vercelHeaders turns the hosts into header rules. In Vercel's dialect the first domain wins, in boxgate the most specific one. If these
// differ, the policy is refused. A specific domain without headers before a wider one with headers becomes a rule without
// effects.
func vercelHeaders(hosts []vercelHost, ps *document.Problems) []policy.HeaderRule {
	out := map[name.Pattern][]policy.HeaderRule{}
	for i, h := range hosts {
		if !setsHeaders(h.rules) {
			continue
		}
		if !h.pattern.IsZero() && h.pattern.Name().IsZero() {
			ps.Add(h.at, `headers on "*" would go to every host; set them on a domain`)
		}
		out[h.pattern] = h.rules
		for k, other := range hosts {
			switch {
			case k < i && refuseShadowed(other, h, ps), k > i && refuseShadowed(h, other, ps):
			case k < i && !setsHeaders(other.rules) && covers443(h.pattern, other.pattern):
				out[other.pattern] = []policy.HeaderRule{{}}
			}
		}
	}
	return patternRules(out, ps)
}

// setsHeaders reports whether some rule has an effect.
func setsHeaders(rules []policy.HeaderRule) bool {
	return slices.ContainsFunc(rules, policy.HeaderRule.Applies)
}

// patternRules returns the rules of each pattern as one list.
func patternRules(of map[name.Pattern][]policy.HeaderRule, ps *document.Problems) (rules []policy.HeaderRule) {
	if len(of) > policy.MaxHeaderHosts {
		ps.Add("", "headers are set on %d hosts; the limit is %d", len(of), policy.MaxHeaderHosts)
	}
	for pattern, list := range of {
		for _, r := range list {
			r.Pattern = pattern
			rules = append(rules, r)
		}
	}
	policy.SortRules(rules)
	return rules
}

// refuseShadowed refuses a later domain whose hosts are covered by an earlier one with other headers.
func refuseShadowed(earlier, later vercelHost, ps *document.Problems) bool {
	if !covers443(earlier.pattern, later.pattern) || slices.EqualFunc(earlier.rules, later.rules, sameEntry) {
		return false
	}
	ps.Add(later.at, "%s comes before and covers it, so its own headers would never be set; put %s first",
		name.Quote(earlier.host), name.Quote(later.host))
	return true
}

// readVercelForward reads the URL of a proxy.
func readVercelForward(at string, v document.Value, ps *document.Problems) []rule.Effect {
	c := rule.Context{Problems: *ps}
	e := forward.Kind{}.Parse(at, v, &c)
	*ps = c.Problems
	if e == nil {
		return nil
	}
	return []rule.Effect{e}
}

// sameEntry reports whether two rules are equivalent.
func sameEntry(a, b policy.HeaderRule) bool {
	matchA, errA := json.Marshal(a.Match)
	matchB, errB := json.Marshal(b.Match)
	return errA == nil && errB == nil && string(matchA) == string(matchB) && a.Deny == b.Deny &&
		slices.EqualFunc(a.Effects, b.Effects, rule.Effect.Equal)
}

// covers443 reports whether p covers q. A pattern without a port is for port 443.
func covers443(p, q name.Pattern) bool {
	return p.WithDefaultPort(name.HTTPSPort).Covers(q.WithDefaultPort(name.HTTPSPort))
}

package dialect

import (
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/match"
)

// ParseSpec reads and checks a policy in JSON: keys and types strictly, domains, CIDRs and rules. The Spec contains the entries as
// written. The error is an *[document.InvalidError] that lists every problem. A document in the dialect of Vercel Sandbox, E2B or
// Daytona is translated as by [Parse], and refused if it has headers, which a Spec cannot contain.
func ParseSpec(data []byte) (policy.Spec, error) {
	spec, headers, err := Parse(data)
	if err != nil {
		return policy.Spec{}, err
	}
	if len(headers) > 0 {
		var ps document.Problems
		ps.Add("", "transform sets headers, which cannot be set here")
		return policy.Spec{}, ps.Err()
	}
	return spec, nil
}

// Parse reads a policy in any dialect: boxgate's own, Vercel Sandbox's (see [ParseVercel]), E2B's (see [ParseE2B]) or Daytona's (see
// [ParseDaytona]). Vercel's and E2B's may include header rules, which are returned sorted by pattern; otherwise headers is nil.
func Parse(data []byte) (spec policy.Spec, headers []policy.HeaderRule, err error) {
	var ps document.Problems
	doc, ok := document.Parse(data, &ps)
	switch {
	case !ok:
	case isVercel(doc):
		return translateVercel(doc, &ps)
	case isE2B(doc):
		return translateE2B(doc, &ps)
	case isDaytona(doc):
		spec, err := translateDaytona(doc, &ps)
		return spec, nil, err
	default:
		spec = readSpec(doc, &ps)
		if len(ps.List) == 0 {
			spec.Check(&ps)
		} else {
			spec.CheckEntries(&ps)
		}
	}
	if err := ps.Err(); err != nil {
		return policy.Spec{}, nil, err
	}
	return spec, nil, nil
}

// SetsHeaders reports whether a policy that [Parse] accepts has a part for header rules, though it may be empty: the rules of domains
// in the dialects of Vercel Sandbox (allow as an object) and of E2B (rules). Such a document describes all header rules of a box.
func SetsHeaders(data []byte) bool {
	var ps document.Problems
	doc, ok := document.Parse(data, &ps)
	if !ok || doc.Kind != document.Object {
		return false
	}
	for i, key := range doc.Keys {
		if doc.Items[i].Kind == document.Object && (key == "allow" && isVercel(doc) || key == "rules" && isE2B(doc)) {
			return true
		}
	}
	return false
}

// readSpec reads the fields of a document without checking their values.
func readSpec(doc document.Value, ps *document.Problems) policy.Spec {
	var s policy.Spec
	list := func(to *[]string) func(string, document.Value) {
		return func(at string, v document.Value) { *to = v.AsStrings(at, ps) }
	}
	doc.Fields("", "an object with mode", ps, map[string]func(string, document.Value){
		"mode":            func(at string, v document.Value) { s.Mode = policy.Mode(v.AsString(at, ps)) },
		"precedence":      func(at string, v document.Value) { s.Precedence = policy.Precedence(v.AsString(at, ps)) },
		"dns":             func(at string, v document.Value) { s.DNS = policy.DNSMode(v.AsString(at, ps)) },
		"denied_names":    func(at string, v document.Value) { s.DeniedNames = policy.DeniedNames(v.AsString(at, ps)) },
		"allowed_domains": list(&s.AllowedDomains),
		"denied_domains":  list(&s.DeniedDomains),
		"allowed_cidrs":   list(&s.AllowedCIDRs),
		"denied_cidrs":    list(&s.DeniedCIDRs),
		"repos":           func(at string, v document.Value) { s.Repos = match.ReadRepos(at, v, ps) },
		"rules":           func(at string, v document.Value) { s.Rules = match.ReadRules(at, v, ps) },
		"upstream_proxy":  func(at string, v document.Value) { s.UpstreamProxy = readUpstream(at, v, ps) },
	})
	return s
}

// readUpstream reads the upstream proxy of a document without checking it.
func readUpstream(at string, v document.Value, ps *document.Problems) *policy.UpstreamSpec {
	s := &policy.UpstreamSpec{}
	v.Fields(at, "an object with url", ps, map[string]func(string, document.Value){
		"url":           func(at string, v document.Value) { s.URL = v.AsString(at, ps) },
		"resolve_there": func(at string, v document.Value) { s.ResolveThere = v.AsStrings(at, ps) },
	})
	return s
}

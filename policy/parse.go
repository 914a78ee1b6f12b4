package policy

// ParseSpec reads a policy from JSON and checks all of it: keys and types strictly, domains, CIDRs and rules. The Spec
// holds the entries as written. The error is an *[InvalidError] that lists every problem. A document in the dialect of
// Vercel Sandbox or E2B is translated as by [ParseNetworkPolicy]; if it carries headers it is refused, since a Spec cannot.
func ParseSpec(data []byte) (Spec, error) {
	spec, headers, err := ParseNetworkPolicy(data)
	if err != nil {
		return Spec{}, err
	}
	if len(headers) > 0 {
		var ps problems
		ps.add("", "transform sets headers, which cannot be set here")
		return Spec{}, ps.err()
	}
	return spec, nil
}

// ParseNetworkPolicy reads a policy in any dialect: boxgate's own, that of Vercel Sandbox (see [ParseVercel]) or of E2B
// (see [ParseE2B]). The latter two may include header rules, which come back sorted by pattern; headers is nil otherwise.
func ParseNetworkPolicy(data []byte) (spec Spec, headers []HeaderRule, err error) {
	var ps problems
	doc, ok := parseDocument(data, &ps)
	switch {
	case !ok:
	case isVercel(doc):
		return translateVercel(doc, &ps)
	case isE2B(doc):
		return translateE2B(doc, &ps)
	default:
		spec = readSpec(doc, &ps)
		if len(ps.list) == 0 {
			checkSpec(spec, &ps)
		} else {
			checkEntries(spec, &ps)
		}
	}
	if err := ps.err(); err != nil {
		return Spec{}, nil, err
	}
	return spec, nil, nil
}

// readSpec reads the fields of a document without checking their values.
func readSpec(doc value, ps *problems) Spec {
	var s Spec
	list := func(to *[]string) func(string, value) {
		return func(at string, v value) { *to = v.strings(at, ps) }
	}
	doc.fields("", "an object with mode", ps, map[string]func(string, value){
		"mode":            func(at string, v value) { s.Mode = Mode(v.string(at, ps)) },
		"dns":             func(at string, v value) { s.DNS = DNSMode(v.string(at, ps)) },
		"denied_names":    func(at string, v value) { s.DeniedNames = DeniedNames(v.string(at, ps)) },
		"allowed_domains": list(&s.AllowedDomains),
		"denied_domains":  list(&s.DeniedDomains),
		"allowed_cidrs":   list(&s.AllowedCIDRs),
		"denied_cidrs":    list(&s.DeniedCIDRs),
		"repos":           func(at string, v value) { s.Repos = readRepos(at, v, ps) },
		"rules":           func(at string, v value) { s.Rules = readRules(at, v, ps) },
		"upstream_proxy":  func(at string, v value) { s.UpstreamProxy = readUpstream(at, v, ps) },
	})
	return s
}

func readRules(at string, v value, ps *problems) []RequestRule {
	if v.kind != kindList {
		ps.add(at, "is %s; want a list of rules", v.kind)
		return nil
	}
	rules := make([]RequestRule, len(v.items))
	for i, item := range v.items {
		r := &rules[i]
		item.fields(element(at, i), "an object with hosts and action", ps, map[string]func(string, value){
			"hosts":   func(at string, v value) { r.Hosts = v.strings(at, ps) },
			"methods": func(at string, v value) { r.Methods = v.strings(at, ps) },
			"paths":   func(at string, v value) { r.Paths = v.strings(at, ps) },
			"match":   func(at string, v value) { r.Match = readMatch(at, v, ps) },
			"action":  func(at string, v value) { r.Action = v.string(at, ps) },
		})
	}
	return rules
}

func readRepos(at string, v value, ps *problems) []RepoRule {
	if v.kind != kindList {
		ps.add(at, "is %s; want a list of repositories", v.kind)
		return nil
	}
	repos := make([]RepoRule, len(v.items))
	for i, item := range v.items {
		r := &repos[i]
		item.fields(element(at, i), "an object with name and access", ps, map[string]func(string, value){
			"host":   func(at string, v value) { r.Host = v.string(at, ps) },
			"name":   func(at string, v value) { r.Name = v.string(at, ps) },
			"access": func(at string, v value) { r.Access = v.string(at, ps) },
		})
	}
	return repos
}

// readUpstream reads the upstream proxy of a document without checking it.
func readUpstream(at string, v value, ps *problems) *UpstreamSpec {
	s := &UpstreamSpec{}
	v.fields(at, "an object with url", ps, map[string]func(string, value){
		"url":           func(at string, v value) { s.URL = v.string(at, ps) },
		"resolve_there": func(at string, v value) { s.ResolveThere = v.strings(at, ps) },
	})
	return s
}

package policy

import (
	"boxgate/policy/name"
	"strings"
)

// checkSpec checks a policy as a whole and returns its entries. The entries are valid only if ps stays empty.
func checkSpec(s Spec, ps *problems) parsedSpec {
	parsed := checkEntries(s, ps)
	checkUpstream(s.UpstreamProxy, ps)
	checkDeniedNames(s, ps)
	switch s.Mode {
	case ModeAllowAll, ModeDenyAll:
		checkNoLists(s, ps)
	case ModeCustom:
		checkCustom(s, ps)
	case "":
		use := `"allow-all", "deny-all" or "custom"`
		if len(s.AllowedDomains)+len(s.DeniedDomains)+len(s.AllowedCIDRs)+len(s.DeniedCIDRs) > 0 {
			use = `"custom"`
		}
		ps.add("/mode", "is missing; use %s", use)
	default:
		ps.add("/mode", `%s is no mode; use "allow-all", "deny-all" or "custom"`, name.Quote(string(s.Mode)))
	}
	return parsed
}

// checkNoLists refuses lists that an allow-all or deny-all policy would ignore.
func checkNoLists(s Spec, ps *problems) {
	for _, list := range []struct {
		key   string
		given bool
	}{
		{"allowed_domains", len(s.AllowedDomains) > 0},
		{"denied_domains", len(s.DeniedDomains) > 0},
		{"allowed_cidrs", len(s.AllowedCIDRs) > 0},
		{"denied_cidrs", len(s.DeniedCIDRs) > 0},
		{"dns", s.DNS != ""},
	} {
		if list.given {
			ps.add("/"+list.key, `means nothing in mode %q; use mode "custom"`, s.Mode)
		}
	}
	if s.Mode == ModeDenyAll && len(s.Repos) > 0 {
		ps.add("/repos", `means nothing in mode "deny-all", which denies every request`)
	}
	if s.Mode == ModeDenyAll && len(s.Rules) > 0 {
		ps.add("/rules", `means nothing in mode "deny-all", which denies every request`)
	}
}

func checkDeniedNames(s Spec, ps *problems) {
	switch s.DeniedNames {
	case "", DeniedSink, DeniedNXDOMAIN, DeniedRefused:
	default:
		ps.add("/denied_names", `%s is no way to answer; use "sink", "nxdomain" or "refused"`, name.Quote(string(s.DeniedNames)))
	}
	if s.DeniedNames != "" && s.Mode == ModeAllowAll {
		ps.add("/denied_names", `means nothing in mode "allow-all", which denies no name`)
	}
}

func checkCustom(s Spec, ps *problems) {
	switch s.DNS {
	case "", DNSStrict, DNSResolve:
	default:
		ps.add("/dns", `%s is no way to resolve; use "strict" or "resolve"`, name.Quote(string(s.DNS)))
	}
	if len(s.AllowedDomains)+len(s.AllowedCIDRs) > 0 {
		return
	}
	// An empty allow list must not turn into "allow what is not denied".
	for _, list := range []struct {
		key   string
		given bool
	}{{"allowed_domains", s.AllowedDomains != nil}, {"allowed_cidrs", s.AllowedCIDRs != nil}} {
		if list.given {
			ps.add("/"+list.key, `is empty, so nothing would be allowed; use mode "deny-all", or leave the list out to allow what is not denied`)
			return
		}
	}
	if len(s.DeniedDomains)+len(s.DeniedCIDRs) == 0 {
		ps.add("", `mode "custom" needs at least one entry in allowed_domains, allowed_cidrs, denied_domains or denied_cidrs; use mode "allow-all" or "deny-all" without any`)
	}
}

// checkEntries checks each entry of the lists by itself.
func checkEntries(s Spec, ps *problems) parsedSpec {
	return parsedSpec{
		allowedDomains: checkDomains("/allowed_domains", s.AllowedDomains, ps),
		deniedDomains:  checkDomains("/denied_domains", s.DeniedDomains, ps),
		allowedCIDRs:   checkCIDRs("/allowed_cidrs", s.AllowedCIDRs, ps),
		deniedCIDRs:    checkCIDRs("/denied_cidrs", s.DeniedCIDRs, ps),
		rules:          append(checkRules("/rules", s.Rules, ps), checkRepos("/repos", s.Repos, ps)...),
	}
}

func tooMany(at string, n, most int, ps *problems) bool {
	if n > most {
		ps.add(at, "has %d entries; the limit is %d", n, most)
	}
	return n > most
}

func checkDomains(at string, list []string, ps *problems) []domain {
	if tooMany(at, len(list), maxEntries+ps.more, ps) {
		return nil
	}
	out := make([]domain, 0, len(list))
	for i, s := range list {
		if d, ok := checkDomain(element(at, i), s, ps); ok {
			out = append(out, d)
		}
	}
	return out
}

func checkDomain(at, s string, ps *problems) (domain, bool) {
	p, err := name.ParsePattern(s)
	if err == nil {
		return domain{p, s}, true
	}
	if name.MeansAddress(s) {
		ps.add(at, "%s; addresses belong in the lists of CIDRs", err)
	} else {
		ps.add(at, "%s", err)
	}
	return domain{}, false
}

func checkCIDRs(at string, list []string, ps *problems) []cidr {
	if tooMany(at, len(list), maxEntries+ps.more, ps) {
		return nil
	}
	out := make([]cidr, 0, len(list))
	for i, s := range list {
		if c, ok := checkCIDR(element(at, i), s, ps); ok {
			out = append(out, c)
		}
	}
	return out
}

func checkCIDR(at, s string, ps *problems) (cidr, bool) {
	p, err := name.ParseCIDR(s)
	if err == nil {
		return cidr{p, s}, true
	}
	if _, nameErr := name.ParsePattern(s); nameErr == nil {
		ps.add(at, "%s; names belong in the lists of domains", err)
	} else {
		ps.add(at, "%s", err)
	}
	return cidr{}, false
}

func checkRules(at string, rules []RequestRule, ps *problems) []requestRule {
	if tooMany(at, len(rules), maxRules, ps) {
		return nil
	}
	out := make([]requestRule, 0, len(rules))
	for i, r := range rules {
		out = append(out, checkRule(element(at, i), r, ps))
	}
	return out
}

func checkRule(at string, r RequestRule, ps *problems) requestRule {
	if tooMany(at+"/hosts", len(r.Hosts), maxRuleElements, ps) || tooMany(at+"/methods", len(r.Methods), maxRuleElements, ps) ||
		tooMany(at+"/paths", len(r.Paths), maxRuleElements, ps) {
		return requestRule{}
	}
	if len(r.Hosts) == 0 {
		ps.add(at+"/hosts", `is empty; name the hosts, or use "*" for all of them`)
	}
	// An empty list would match everything, which is the opposite of what it says.
	if r.Methods != nil && len(r.Methods) == 0 {
		ps.add(at+"/methods", "is empty; leave it out to match every method")
	}
	if r.Paths != nil && len(r.Paths) == 0 {
		ps.add(at+"/paths", "is empty; leave it out to match every path")
	}
	out := requestRule{deny: r.Action != actionAllow, methods: r.Methods, rule: describe(r)}
	for _, d := range checkDomains(at+"/hosts", r.Hosts, ps) {
		out.hosts = append(out.hosts, d.pattern)
	}
	if r.Match != nil {
		if len(r.Methods) > 0 && len(r.Match.Methods) > 0 {
			ps.add(at+"/match/methods", "methods are given in the rule as well; give them in one place")
		}
		out.match = checkMatch(at+"/match", *r.Match, ps)
	}
	for i, m := range r.Methods {
		checkMethod(element(at+"/methods", i), m, ps)
	}
	for i, p := range r.Paths {
		out.paths = append(out.paths, checkPath(element(at+"/paths", i), p, ps))
	}
	switch r.Action {
	case actionAllow, actionDeny:
	case "":
		ps.add(at+"/action", `is missing; use "allow" or "deny"`)
	default:
		ps.add(at+"/action", `%s is no action; use "allow" or "deny"`, name.Quote(r.Action))
	}
	return out
}

func checkMethod(at, m string, ps *problems) {
	for i := range len(m) {
		if !name.IsToken(m[i]) {
			ps.add(at, "%s is not an HTTP method", name.Quote(m))
			return
		}
	}
	switch {
	case m == "" || len(m) > 64:
		ps.add(at, "%s is not an HTTP method", name.Quote(m))
	case m == "*":
		ps.add(at, `"*" is not an HTTP method; leave methods out to match every one`)
	case m != strings.ToUpper(m):
		// Methods are case-sensitive (RFC 9110 9.1): "delete" would never match a DELETE.
		ps.add(at, "%s is not in capitals; use %q", name.Quote(m), strings.ToUpper(m))
	}
}

func checkPath(at, p string, ps *problems) pathPattern {
	out := newPathPattern(p)
	switch {
	case p == "" || p[0] != '/' && p != "*":
		ps.add(at, "%s does not begin with /", name.Quote(p))
	case len(p) > 4096:
		ps.add(at, "is longer than 4096 bytes")
	case strings.ContainsAny(p, "?#"):
		ps.add(at, "%s has a query or fragment, which paths are matched without; use %q", name.Quote(p), p[:strings.IndexAny(p, "?#")])
	case strings.IndexFunc(p, name.IsBlank) >= 0:
		ps.add(at, "%s has a space or control character; write it percent-encoded", name.Quote(p))
	case strings.Contains(strings.TrimSuffix(p, "*"), "*"):
		ps.add(at, `%s has a * that is not at the end`, name.Quote(p))
	case hasDotSegment(p):
		ps.add(at, "%s has a . or .. segment; use %q", name.Quote(p), out.String())
	}
	return out
}

// checkUpstream checks the upstream proxy of a policy.
func checkUpstream(s *UpstreamSpec, ps *problems) {
	if s == nil {
		return
	}
	if _, err := ParseUpstream(s.URL); err != nil {
		ps.add("/upstream_proxy/url", "%s", err)
	}
	checkDomains("/upstream_proxy/resolve_there", s.ResolveThere, ps)
}

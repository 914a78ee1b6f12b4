package policy

import (
	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// checkSpec checks a policy as a whole, whose lists may have so many entries, and returns them. They are valid only if ps stays
// empty.
func checkSpec(s Spec, most int, ps *document.Problems) parsedSpec {
	parsed := checkEntries(s, most, ps)
	checkUpstream(s.UpstreamProxy, most, ps)
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
		ps.Add("/mode", "is missing; use %s", use)
	default:
		ps.Add("/mode", `%s is no mode; use "allow-all", "deny-all" or "custom"`, name.Quote(string(s.Mode)))
	}
	return parsed
}

// checkNoLists refuses lists that an allow-all or deny-all policy would ignore.
func checkNoLists(s Spec, ps *document.Problems) {
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
			ps.Add("/"+list.key, `means nothing in mode %q; use mode "custom"`, s.Mode)
		}
	}
	if s.Mode == ModeDenyAll && len(s.Repos) > 0 {
		ps.Add("/repos", `means nothing in mode "deny-all", which denies every request`)
	}
	if s.Mode == ModeDenyAll && len(s.Rules) > 0 {
		ps.Add("/rules", `means nothing in mode "deny-all", which denies every request`)
	}
}

func checkDeniedNames(s Spec, ps *document.Problems) {
	switch s.DeniedNames {
	case "", DeniedSink, DeniedNXDOMAIN, DeniedRefused:
	default:
		ps.Add("/denied_names", `%s is no way to answer; use "sink", "nxdomain" or "refused"`, name.Quote(string(s.DeniedNames)))
	}
	if s.DeniedNames != "" && s.Mode == ModeAllowAll {
		ps.Add("/denied_names", `means nothing in mode "allow-all", which denies no name`)
	}
}

func checkCustom(s Spec, ps *document.Problems) {
	switch s.DNS {
	case "", DNSStrict, DNSResolve:
	default:
		ps.Add("/dns", `%s is no way to resolve; use "strict" or "resolve"`, name.Quote(string(s.DNS)))
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
			ps.Add("/"+list.key, `is empty, so nothing would be allowed; use mode "deny-all", or leave the list out to allow what is not denied`)
			return
		}
	}
	if len(s.DeniedDomains)+len(s.DeniedCIDRs) == 0 {
		ps.Add("", `mode "custom" needs at least one entry in allowed_domains, allowed_cidrs, denied_domains or denied_cidrs; use mode "allow-all" or "deny-all" without any`)
	}
}

// checkEntries checks each entry of the lists by itself.
func checkEntries(s Spec, most int, ps *document.Problems) parsedSpec {
	return parsedSpec{
		allowedDomains: checkDomains("/allowed_domains", s.AllowedDomains, most, ps),
		deniedDomains:  checkDomains("/denied_domains", s.DeniedDomains, most, ps),
		allowedCIDRs:   checkCIDRs("/allowed_cidrs", s.AllowedCIDRs, most, ps),
		deniedCIDRs:    checkCIDRs("/denied_cidrs", s.DeniedCIDRs, most, ps),
		rules:          append(match.CompileRules("/rules", s.Rules, ps), match.CompileRepos("/repos", s.Repos, ps)...),
	}
}

func checkDomains(at string, list []string, most int, ps *document.Problems) []domain {
	if ps.TooMany(at, len(list), most) {
		return nil
	}
	out := make([]domain, 0, len(list))
	for i, s := range list {
		if p, ok := ps.Pattern(document.Element(at, i), s); ok {
			out = append(out, domain{p, s})
		}
	}
	return out
}

func checkCIDRs(at string, list []string, most int, ps *document.Problems) []cidr {
	if ps.TooMany(at, len(list), most) {
		return nil
	}
	out := make([]cidr, 0, len(list))
	for i, s := range list {
		if p, ok := ps.CIDR(document.Element(at, i), s); ok {
			out = append(out, cidr{p, s})
		}
	}
	return out
}

// checkUpstream checks the upstream proxy of a policy.
func checkUpstream(s *UpstreamSpec, most int, ps *document.Problems) {
	if s == nil {
		return
	}
	if _, err := ParseUpstream(s.URL); err != nil {
		ps.Add("/upstream_proxy/url", "%s", err)
	}
	checkDomains("/upstream_proxy/resolve_there", s.ResolveThere, most, ps)
}

// Check adds what is wrong with a policy.
func (s Spec) Check(ps *document.Problems) { checkSpec(s, MaxEntries, ps) }

// CheckEntries adds what is wrong with the entries of a policy, each by itself.
func (s Spec) CheckEntries(ps *document.Problems) { checkEntries(s, MaxEntries, ps) }

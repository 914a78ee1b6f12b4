package policy

import (
	"net/netip"
	"slices"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// Mode is the kind of a policy.
type Mode string

// The modes.
const (
	ModeAllowAll Mode = "allow-all"
	ModeDenyAll  Mode = "deny-all"
	ModeCustom   Mode = "custom"
)

// DNSMode determines the names that the DNS server resolves when the mode is custom.
type DNSMode string

// The DNS modes. The empty value takes the default: strict when allowed_domains is given, resolve when it is not.
const (
	DNSStrict  DNSMode = "strict"  // only allowed names are sent upstream
	DNSResolve DNSMode = "resolve" // other names too, A and AAAA only, answers limited to allowed_cidrs
)

// DeniedNames is the DNS answer for names that are not allowed.
type DeniedNames string

// The answers for names that are not allowed. The default for the empty value is DeniedNXDOMAIN for single labels and names
// below the search list of the box, and DeniedSink for the rest.
const (
	DeniedSink     DeniedNames = "sink"     // the address of the sink, where the connection is refused by name
	DeniedNXDOMAIN DeniedNames = "nxdomain" // no such name
	DeniedRefused  DeniedNames = "refused"
)

// Spec is a policy as written, in the dialect of the admin API.
type Spec struct {
	Mode           Mode                `json:"mode" enum:"allow-all deny-all custom"`
	AllowedDomains []string            `json:"allowed_domains,omitempty"`
	DeniedDomains  []string            `json:"denied_domains,omitempty"`
	AllowedCIDRs   []string            `json:"allowed_cidrs,omitempty"`
	DeniedCIDRs    []string            `json:"denied_cidrs,omitempty"`
	Precedence     Precedence          `json:"precedence,omitempty" enum:"specific" doc:"which entry decides; absent: what is denied; specific: the longer name or prefix, and among equals what is denied"`
	DNS            DNSMode             `json:"dns,omitempty" enum:"strict resolve"`
	DeniedNames    DeniedNames         `json:"denied_names,omitempty" enum:"sink nxdomain refused" doc:"how DNS answers for names that may not be reached"`
	Rules          []match.RequestRule `json:"rules,omitempty"`
	Repos          []match.RepoRule    `json:"repos,omitempty"`
	UpstreamProxy  *UpstreamSpec       `json:"upstream_proxy,omitempty" doc:"all connections go by this proxy"`

	overruling []string // see Overruled
}

// Limits of a policy.
const (
	MaxEntries = 10_000 // of each list of domains or CIDRs
)

// MostBeside is the largest number of temporary entries in addition to a policy. A policy with the largest number of entries can still be
// compiled with them.
const MostBeside = 256

// domain is an entry of a list of domains, and cidr of a list of CIDRs, with the text for decisions.
type (
	domain struct {
		pattern name.Pattern
		rule    string
	}
	cidr struct {
		prefix netip.Prefix
		rule   string
	}
)

// parsedSpec contains the entries of a valid Spec.
type parsedSpec struct {
	allowedDomains, deniedDomains []domain
	allowedCIDRs, deniedCIDRs     []cidr
	denied                        *name.Ranges // deniedCIDRs, without their exceptions if precedence is specific
	overrulingDomains             []domain     // see [Spec.Overruled]
	overrulingCIDRs               []cidr
	rules                         []match.CompiledRule
	cluster                       clusterEntries
}

// DefaultAllow reports whether the policy has only denied lists, so that everything else is allowed.
func (s Spec) DefaultAllow() bool {
	return s.Mode == ModeAllowAll || s.Mode == ModeCustom && len(s.AllowedDomains)+len(s.AllowedCIDRs) == 0
}

// resolvesOthers reports whether dns: resolve applies, explicitly or by default.
func (s Spec) resolvesOthers() bool {
	if s.Mode != ModeCustom || !slices.ContainsFunc(s.AllowedCIDRs, func(c string) bool { return c != ClusterServices }) {
		return false
	}
	return s.DNS == DNSResolve || s.DNS == "" && len(s.AllowedDomains) == 0
}

// Mentions are the names and addresses by which a policy, its rules, its header rules and its ceiling tell destinations apart:
// two destinations are decided alike if the same mentions cover both.
type Mentions struct {
	Names    []name.Pattern
	Prefixes []netip.Prefix // the protected ranges as well
}

// Mentions returns the names and addresses in the policy, in no order.
func (c *Compiled) Mentions() (m Mentions) {
	if c == nil {
		return m
	}
	for _, list := range [][]string{c.spec.AllowedDomains, c.spec.DeniedDomains, c.spec.AllowedCIDRs, c.spec.DeniedCIDRs, c.spec.overruling} {
		for _, s := range list {
			if p, err := name.ParseCIDR(s); err == nil {
				m.Prefixes = append(m.Prefixes, p)
			} else if p, err := name.ParsePattern(s); err == nil {
				m.Names = append(m.Names, p)
			}
		}
	}
	m.Names, m.Prefixes = append(m.Names, c.ruled...), append(m.Prefixes, c.plan.Protected...)
	if c.cluster != nil {
		m.Prefixes = append(m.Prefixes, c.cluster.prefixes...)
	}
	if all, err := name.ParsePattern("*." + c.cluster.text()); err == nil && c.listed != (clusterEntries{}) {
		m.Names = append(m.Names, all)
	}
	above := c.ceiling.Mentions()
	m.Names, m.Prefixes = append(m.Names, above.Names...), append(m.Prefixes, above.Prefixes...)
	return m
}

// clone returns a deep copy.
func (s Spec) clone() Spec {
	s.AllowedDomains = slices.Clone(s.AllowedDomains)
	s.DeniedDomains = slices.Clone(s.DeniedDomains)
	s.AllowedCIDRs = slices.Clone(s.AllowedCIDRs)
	s.DeniedCIDRs = slices.Clone(s.DeniedCIDRs)
	s.Rules = slices.Clone(s.Rules)
	s.Repos = slices.Clone(s.Repos)
	s.UpstreamProxy = s.UpstreamProxy.clone()
	s.overruling = slices.Clone(s.overruling)
	for i, r := range s.Rules {
		s.Rules[i] = r.Clone()
	}
	return s
}

// checkSpec checks a policy, whose lists may each have most entries, and returns the parsed entries. They are valid only if ps
// stays empty.
func checkSpec(s Spec, most int, ps *document.Problems) parsedSpec {
	parsed := checkEntries(s, most, ps)
	parsed.addOverruling(s.overruling, ps)
	parsed.denied = parsed.deniedRanges(s, most, ps)
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
		{"precedence", s.Precedence != ""},
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
	if s.Precedence != "" && s.Precedence != PrecedenceSpecific {
		ps.Add("/precedence", `%s is no precedence; use "specific", or leave it out: then denied entries win`, name.Quote(string(s.Precedence)))
	}
	switch s.DNS {
	case "", DNSStrict, DNSResolve:
	default:
		ps.Add("/dns", `%s is no way to resolve; use "strict" or "resolve"`, name.Quote(string(s.DNS)))
	}
	if len(s.AllowedDomains)+len(s.AllowedCIDRs) > 0 {
		return
	}
	// An empty allow list must not mean "allow everything but the denied".
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

// checkEntries checks each entry of the lists separately.
func checkEntries(s Spec, most int, ps *document.Problems) parsedSpec {
	return parsedSpec{
		allowedDomains: checkDomains("/allowed_domains", s.AllowedDomains, most, ps),
		deniedDomains:  checkDomains("/denied_domains", s.DeniedDomains, most, ps),
		allowedCIDRs:   checkCIDRs("/allowed_cidrs", s.AllowedCIDRs, most, ps),
		deniedCIDRs:    checkCIDRs("/denied_cidrs", s.DeniedCIDRs, most, ps),
		cluster:        clusterEntriesOf(s),
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
		if s == ClusterServices {
			continue
		}
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

// Check adds the problems of a policy.
func (s Spec) Check(ps *document.Problems) { checkSpec(s, MaxEntries, ps) }

// CheckEntries adds the problems of the entries of a policy, each checked separately.
func (s Spec) CheckEntries(ps *document.Problems) { checkEntries(s, MaxEntries, ps) }

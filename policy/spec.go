package policy

import (
	"net/netip"
	"slices"

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

// DNSMode says which names the DNS server resolves when the mode is custom.
type DNSMode string

// The DNS modes. The empty value takes the default: strict when allowed_domains is given, resolve when it is not.
const (
	DNSStrict  DNSMode = "strict"  // only names that may be reached are sent upstream
	DNSResolve DNSMode = "resolve" // other names too, A and AAAA only, answers limited to allowed_cidrs
)

// DeniedNames says how DNS answers for names that may not be reached.
type DeniedNames string

// The answers for names that may not be reached. The empty value takes the default: no such name for single labels and for
// names below the search list of the box, the sink for the rest.
const (
	DeniedSink     DeniedNames = "sink"     // the sink's address, so that the attempt that follows is refused by name
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
	DNS            DNSMode             `json:"dns,omitempty" enum:"strict resolve"`
	DeniedNames    DeniedNames         `json:"denied_names,omitempty" enum:"sink nxdomain refused" doc:"how DNS answers for names that may not be reached"`
	Rules          []match.RequestRule `json:"rules,omitempty"`
	Repos          []match.RepoRule    `json:"repos,omitempty"`
	UpstreamProxy  *UpstreamSpec       `json:"upstream_proxy,omitempty" doc:"all connections go by this proxy"`
}

// Limits of a policy.
const (
	MaxEntries = 10_000 // of each list of domains or CIDRs
)

// MostBeside is how many entries may stand beside a policy for a time. A policy that has as many as it may have can be compiled with them:
// they are no reason to refuse it.
const MostBeside = 256

// domain is one entry of a list of domains, and cidr one of a list of CIDRs, with the text that decisions name.
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

// parsedSpec holds the entries of a valid Spec.
type parsedSpec struct {
	allowedDomains, deniedDomains []domain
	allowedCIDRs, deniedCIDRs     []cidr
	rules                         []match.CompiledRule
}

// DefaultAllow reports whether a custom policy has only denied lists, so that everything else is allowed.
func (s Spec) DefaultAllow() bool {
	return s.Mode == ModeAllowAll || s.Mode == ModeCustom && len(s.AllowedDomains)+len(s.AllowedCIDRs) == 0
}

// resolvesOthers reports whether dns: resolve is in force, given or by default.
func (s Spec) resolvesOthers() bool {
	if s.Mode != ModeCustom || len(s.AllowedCIDRs) == 0 {
		return false
	}
	return s.DNS == DNSResolve || s.DNS == "" && len(s.AllowedDomains) == 0
}

// clone returns a copy that shares nothing with s.
func (s Spec) clone() Spec {
	s.AllowedDomains = slices.Clone(s.AllowedDomains)
	s.DeniedDomains = slices.Clone(s.DeniedDomains)
	s.AllowedCIDRs = slices.Clone(s.AllowedCIDRs)
	s.DeniedCIDRs = slices.Clone(s.DeniedCIDRs)
	s.Rules = slices.Clone(s.Rules)
	s.Repos = slices.Clone(s.Repos)
	s.UpstreamProxy = s.UpstreamProxy.clone()
	for i, r := range s.Rules {
		s.Rules[i] = r.Clone()
	}
	return s
}

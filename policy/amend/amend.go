// Package amend changes single entries of a policy, and preserves its decisions about everything else.
package amend

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
)

// Entry is an entry for the lists of a policy: a name or "*.name" with or without a port, an address or a CIDR, or
// [policy.ClusterServices].
type Entry struct {
	text    string
	pattern name.Pattern // zero for an address
	prefix  netip.Prefix // zero for a name, and for the services of the cluster
}

// ParseEntry reads an entry. The error contains the corrected form if it is obvious.
func ParseEntry(s string) (Entry, error) {
	prefix, isAddress := prefixOf(s)
	if s == policy.ClusterServices {
		return Entry{text: s}, nil
	}
	if !isAddress {
		pattern, err := name.ParsePattern(s)
		return Entry{s, pattern, netip.Prefix{}}, err
	}
	// The parser of policies accepts one spelling of each range.
	_, err := policy.Compile(policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{s}}, policy.Options{})
	if invalid, ok := errors.AsType[*document.InvalidError](err); ok {
		return Entry{}, errors.New(invalid.Problems[0].Message)
	}
	return Entry{s, name.Pattern{}, prefix}, err
}

// listed reads an entry of a policy, which has been checked before.
func listed(s string) (Entry, bool) {
	if prefix, ok := prefixOf(s); ok || s == policy.ClusterServices {
		return Entry{s, name.Pattern{}, prefix}, true
	}
	pattern, err := name.ParsePattern(s)
	return Entry{s, pattern, netip.Prefix{}}, err == nil
}

// prefixOf reads a CIDR, or an address as its host route.
func prefixOf(s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	return p, err == nil
}

// String returns the entry as it was given.
func (e Entry) String() string { return e.text }

func (e Entry) isAddress() bool { return e.prefix.IsValid() || e.isCluster() }

// isCluster reports whether the entry stands for the service addresses of the cluster.
func (e Entry) isCluster() bool { return e.text == policy.ClusterServices }

// covers reports whether e covers all destinations of o.
func (e Entry) covers(o Entry) bool {
	if e.isAddress() != o.isAddress() || e.isCluster() != o.isCluster() {
		return false
	}
	if e.isCluster() {
		return true
	}
	if e.isAddress() {
		return e.prefix.Bits() <= o.prefix.Bits() && e.prefix.Contains(o.prefix.Addr())
	}
	return e.pattern.Covers(o.pattern)
}

// isSame reports whether both cover the same destinations.
func (e Entry) isSame(o Entry) bool { return e.covers(o) && o.covers(e) }

// coveredBy returns the first entry of a list that covers e, or "".
func (e Entry) coveredBy(list []string) string {
	i := slices.IndexFunc(list, func(s string) bool {
		other, ok := listed(s)
		return ok && other.covers(e) && (!e.pattern.IsService() || !other.pattern.IsWildcard()) && e.opensCluster(other) // wildcards open no service
	})
	if i < 0 {
		return ""
	}
	return list[i]
}

// opensCluster reports whether a wildcard that covers e also opens it if it is a name of a cluster, such as web.default.svc.cluster.local: "*"
// and "*.local" do not. Whether there is such a cluster is not known here, so that other names with the label svc are treated alike.
func (e Entry) opensCluster(by Entry) bool {
	_, domain, found := strings.Cut(e.pattern.Name().String(), ".svc.")
	if !found || !by.pattern.IsWildcard() {
		return true
	}
	n, err := name.Parse(domain)
	return err != nil || by.pattern.Name().IsWithin(n)
}

// without returns a list without the entries for which gone reports true; nil if it is empty.
func without(list []string, gone func(Entry) bool) []string {
	var out []string
	for _, s := range list {
		if e, ok := listed(s); !ok || !gone(e) {
			out = append(out, s)
		}
	}
	return out
}

// lists returns the lists of a policy for entries like e.
func (e Entry) lists(s *policy.Spec) (allowed, denied *[]string) {
	if e.isAddress() {
		return &s.AllowedCIDRs, &s.DeniedCIDRs
	}
	return &s.AllowedDomains, &s.DeniedDomains
}

// Change is a policy after a change of one entry.
type Change struct {
	Spec    policy.Spec
	Changed bool
	Said    string // describes the change, or the reason why there is none
}

func unchanged(s policy.Spec, format string, args ...any) Change {
	return Change{s, false, "nothing to do: " + fmt.Sprintf(format, args...)}
}

// Allow changes a policy so that it allows an entry, and preserves all other decisions:
//
//   - allow-all allows it already
//   - deny-all becomes custom with this one entry
//   - a custom policy loses the same denied entry. It gets an allowed entry, unless another one covers it or the policy only
//     denies: an allowed entry would deny everything else
//
// Denied entries win, so the error names a remaining one that covers the entry. With precedence: specific only one of the same length
// or longer wins, and the entry is added also if an allowed entry covers it but loses to a denied one. The argument is not modified.
func Allow(s policy.Spec, e Entry) (Change, error) {
	if e.pattern.IsService() && s.DefaultAllow() {
		return Change{}, fmt.Errorf("%s is opened by an entry of allowed_domains only, and the policy has no such list; nothing was changed. Use mode custom with allowed_domains: [\"*\", %q]", e, e.text)
	}
	if e.isCluster() && s.DefaultAllow() {
		return Change{}, fmt.Errorf("%s is opened by an entry of allowed_cidrs only, and the policy has no allowed list; nothing was changed. Use mode custom with allowed_domains: [\"*\"] and allowed_cidrs: [%q]", e, e.text)
	}
	switch s.Mode {
	case policy.ModeAllowAll:
		return unchanged(s, "the mode allow-all allows it already"), nil
	case policy.ModeDenyAll:
		s.Mode = policy.ModeCustom
		allowed, _ := e.lists(&s)
		*allowed = []string{e.text}
		if e.isAddress() {
			s.DNS = policy.DNSStrict // the default of a policy with addresses alone resolves other names
		}
		return Change{s, true, "allowed; the mode was deny-all, and is custom now"}, nil
	}
	allowed, denied := e.lists(&s)
	rest := without(*denied, e.isSame)
	if by := e.deniedBy(s, rest); by != "" {
		return Change{}, fmt.Errorf("%s is denied by %q, and what is denied wins; nothing was changed. Change that entry with `gateway policy edit`", e, by)
	}
	if by := e.exceptedFrom(s, rest); by != "" && len(s.AllowedDomains)+len(s.AllowedCIDRs) == 0 {
		return Change{}, fmt.Errorf("%s is denied by %q, and a first allowed entry would deny everything else; nothing was changed. Change the policy with `gateway policy edit`", e, by)
	}
	lifted := len(rest) < len(*denied)
	*denied = rest
	if len(s.AllowedDomains)+len(s.AllowedCIDRs) == 0 {
		return allowInOpen(s, lifted), nil
	}
	by := e.allowedBy(s, *allowed, rest)
	switch {
	case by != "" && lifted:
		return Change{s, true, fmt.Sprintf("allowed by %q; it is not denied any more", by) + e.exceptions(s, rest)}, nil
	case by != "":
		return unchanged(s, "%q allows it already", by), nil
	case len(s.AllowedDomains) == 0 && s.DNS == "":
		s.DNS = policy.DNSResolve // the previous default, which changes with the first name
	}
	*allowed = added(*allowed, e)
	return Change{s, true, "allowed" + e.exceptions(s, rest)}, nil
}

// allowInOpen ends the change of a policy with denied lists only.
func allowInOpen(s policy.Spec, lifted bool) Change {
	switch {
	case !lifted:
		return unchanged(s, "the policy allows what it does not deny")
	case len(s.DeniedDomains)+len(s.DeniedCIDRs) == 0:
		s.Mode, s.DNS, s.DeniedNames, s.Precedence = policy.ModeAllowAll, "", "", ""
		return Change{s, true, "not denied any more; nothing else was, so the mode is allow-all now"}
	}
	return Change{s, true, "not denied any more"}
}

// Deny changes a policy so that it denies an entry, and preserves all other decisions:
//
//   - deny-all denies it already
//   - allow-all becomes custom with this one denied entry
//   - a custom policy gets a denied entry, unless another one covers it, and loses the allowed entries that it covers, unless
//     none would remain: an empty list has another meaning. With precedence: specific, allowed entries that remain and would win
//     over it are denied too
//
// The argument is not modified.
func Deny(s policy.Spec, e Entry) Change {
	switch s.Mode {
	case policy.ModeDenyAll:
		return unchanged(s, "the mode deny-all denies it already")
	case policy.ModeAllowAll:
		s.Mode = policy.ModeCustom
		_, denied := e.lists(&s)
		*denied = []string{e.text}
		return Change{s, true, "denied; the mode was allow-all, and is custom now: what is not denied stays open"}
	}
	if s.Precedence == policy.PrecedenceSpecific {
		return denySpecific(s, e)
	}
	allowed, denied := e.lists(&s)
	if by := e.coveredBy(*denied); by != "" {
		return unchanged(s, "%q denies it already", by)
	}
	*denied = added(*denied, e)
	if rest := without(*allowed, e.covers); len(rest) > 0 {
		*allowed = rest
	}
	return Change{s, true, "denied"}
}

// exceptions describes the parts of e that denied entries exclude.
func (e Entry) exceptions(s policy.Spec, denied []string) string {
	parts := ""
	for _, text := range denied {
		if d, err := ParseEntry(text); err == nil && d.meets(e) && (s.Precedence != policy.PrecedenceSpecific || d.length() >= e.length()) {
			parts += fmt.Sprintf(", except for %q, which is denied", text)
		}
	}
	return parts
}

// added returns a copy of a list with one more entry.
func added(list []string, e Entry) []string {
	return append(append(make([]string, 0, len(list)+1), list...), e.text)
}

// Beside returns a policy with temporarily allowed and denied entries. Denied entries, of the policy and temporary ones, win over
// allowed ones. With precedence: specific, a temporarily allowed entry wins over shorter denied ones of the policy, and a temporarily
// denied one over everything that it covers. Entries that are already allowed are not added: in a policy that only denies, an
// allowed entry would deny everything else. The argument is not modified.
func Beside(s policy.Spec, allowed, denied []Entry) policy.Spec {
	for _, e := range allowed {
		s = allowBeside(s, e)
	}
	for _, e := range denied {
		s = denyBeside(s, e)
	}
	return s
}

func allowBeside(s policy.Spec, e Entry) policy.Spec {
	if s.Mode == policy.ModeDenyAll {
		c, _ := Allow(s, e) // no denied entry covers it
		return c.Spec
	}
	list, denied := e.lists(&s)
	switch {
	case s.Mode != policy.ModeCustom || len(s.AllowedDomains)+len(s.AllowedCIDRs) == 0 || e.allowedBy(s, *list, *denied) != "":
		return s
	case len(s.AllowedDomains) == 0 && s.DNS == "":
		s.DNS = policy.DNSResolve // the previous default, which changes with the first name
	}
	*list = added(*list, e)
	return s
}

// denyBeside adds a denied entry that wins over all allowed ones.
func denyBeside(s policy.Spec, e Entry) policy.Spec {
	if s.Mode != policy.ModeCustom {
		return Deny(s, e).Spec
	}
	if s.Precedence == policy.PrecedenceSpecific && len(s.AllowedDomains)+len(s.AllowedCIDRs) > 0 {
		return s.Overruled(e.text) // one entry, however many allowed ones it covers
	}
	_, list := e.lists(&s)
	if e.coveredBy(*list) == "" {
		*list = added(*list, e)
	}
	return s
}

// Idle returns the reason why temporarily allowing or denying an entry has no effect at present; "" if it has one. An entry that the
// policy denies cannot be allowed, which is an error.
func (e Entry) Idle(s policy.Spec, allow bool) (why string, err error) {
	c := Deny(s, e)
	if allow {
		_, denied := e.lists(&s)
		if by := e.deniedBy(s, *denied); by != "" {
			return "", fmt.Errorf("%s is denied by %q, and what is denied wins", e, by)
		}
		if c, err = Allow(s, e); err != nil {
			return "", err
		}
	}
	if c.Changed {
		return "", nil
	}
	return c.Said, nil
}

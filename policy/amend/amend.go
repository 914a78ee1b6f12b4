package amend

import (
	"fmt"

	"boxgate/policy"
)

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

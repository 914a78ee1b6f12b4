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
// Denied entries win, so the error names a remaining one that covers the entry. The argument is not modified.
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
	if by := e.coveredBy(rest); by != "" {
		return Change{}, fmt.Errorf("%s is denied by %q, and what is denied wins; nothing was changed. Change that entry with `gateway policy edit`", e, by)
	}
	lifted := len(rest) < len(*denied)
	*denied = rest
	if len(s.AllowedDomains)+len(s.AllowedCIDRs) == 0 {
		return allowInOpen(s, lifted), nil
	}
	by := e.coveredBy(*allowed)
	switch {
	case by != "" && lifted:
		return Change{s, true, fmt.Sprintf("allowed by %q; it is not denied any more", by) + e.exceptions(rest)}, nil
	case by != "":
		return unchanged(s, "%q allows it already", by), nil
	case len(s.AllowedDomains) == 0 && s.DNS == "":
		s.DNS = policy.DNSResolve // the previous default, which changes with the first name
	}
	*allowed = added(*allowed, e)
	return Change{s, true, "allowed" + e.exceptions(rest)}, nil
}

// allowInOpen ends the change of a policy with denied lists only.
func allowInOpen(s policy.Spec, lifted bool) Change {
	switch {
	case !lifted:
		return unchanged(s, "the policy allows what it does not deny")
	case len(s.DeniedDomains)+len(s.DeniedCIDRs) == 0:
		s.Mode, s.DNS, s.DeniedNames = policy.ModeAllowAll, "", ""
		return Change{s, true, "not denied any more; nothing else was, so the mode is allow-all now"}
	}
	return Change{s, true, "not denied any more"}
}

// Deny changes a policy so that it denies an entry, and preserves all other decisions:
//
//   - deny-all denies it already
//   - allow-all becomes custom with this one denied entry
//   - a custom policy gets a denied entry, unless another one covers it, and loses the allowed entries that it covers, unless
//     none would remain: an empty list has another meaning
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
func (e Entry) exceptions(denied []string) string {
	parts := ""
	for _, s := range denied {
		if d, err := ParseEntry(s); err == nil && e.covers(d) {
			parts += fmt.Sprintf(", except for %q, which is denied", s)
		}
	}
	return parts
}

// added returns a copy of a list with one more entry.
func added(list []string, e Entry) []string {
	return append(append(make([]string, 0, len(list)+1), list...), e.text)
}

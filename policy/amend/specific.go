package amend

import (
	"slices"

	"boxgate/policy"
	"boxgate/policy/name"
)

// length returns how specific an entry is, without its port: entries that cover a common destination are compared by it.
func (e Entry) length() int {
	switch {
	case e.isCluster(): // compared with itself alone
		return 0
	case e.isAddress():
		return e.prefix.Bits()
	case e.pattern.IsWildcard():
		return len(e.pattern.Name().String()) // of "*": 0
	}
	return 1 << 10 // more than any wildcard
}

// meets reports whether two entries have common destinations.
func (e Entry) meets(o Entry) bool {
	if e.isAddress() || o.isAddress() {
		return e.covers(o) || o.covers(e)
	}
	p, q := e.pattern, o.pattern
	if p.Port() != 0 && q.Port() != 0 && p.Port() != q.Port() {
		return false
	}
	p, q = p.WithPort(0), q.WithPort(0)
	return p.Covers(q) || q.Covers(p)
}

// deniedBy returns the first of the denied entries that cover e and win over it, or "".
func (e Entry) deniedBy(s policy.Spec, denied []string) string {
	if s.Precedence != policy.PrecedenceSpecific {
		return e.coveredBy(denied)
	}
	return e.coveredBy(slices.DeleteFunc(slices.Clone(denied), func(d string) bool {
		other, ok := listed(d)
		return ok && other.length() < e.length()
	}))
}

// exceptedFrom returns a denied entry for a part of e over which e wins, or "".
func (e Entry) exceptedFrom(s policy.Spec, denied []string) string {
	if s.Precedence != policy.PrecedenceSpecific {
		return ""
	}
	i := slices.IndexFunc(denied, func(d string) bool {
		other, ok := listed(d)
		return ok && other.meets(e) && other.length() < e.length()
	})
	if i < 0 {
		return ""
	}
	return denied[i]
}

// allowedBy returns an allowed entry that covers e and wins over each denied entry that is not longer than e, or "".
func (e Entry) allowedBy(s policy.Spec, allowed, denied []string) string {
	if s.Precedence != policy.PrecedenceSpecific {
		return e.coveredBy(allowed)
	}
	longest := -1
	for _, d := range denied {
		if other, ok := listed(d); ok && other.meets(e) && other.length() < e.length() {
			longest = max(longest, other.length())
		}
	}
	return e.coveredBy(slices.DeleteFunc(slices.Clone(allowed), func(a string) bool {
		other, ok := listed(a)
		return !ok || other.length() <= longest
	}))
}

// forms returns an entry, and the NAT64 form of an IPv4 one, which it covers too.
func (e Entry) forms() []Entry {
	if t := name.Translated(e.prefix); e.isAddress() && t != e.prefix {
		return []Entry{e, {t.String(), name.Pattern{}, t}}
	}
	return []Entry{e}
}

// coversSome reports whether a form of e covers o.
func (e Entry) coversSome(o Entry) bool {
	return slices.ContainsFunc(e.forms(), func(f Entry) bool { return f.covers(o) })
}

// deniedAllBy reports whether the denied entry by covers e, and no allowed entry wins over it for a part of e.
func (e Entry) deniedAllBy(by Entry, allowed []string) bool {
	if !by.coversSome(e) {
		return false
	}
	for _, f := range e.forms() {
		for _, d := range by.forms() {
			if d.covers(f) && f.isOutranked(allowed, d.length()) {
				return false
			}
		}
	}
	return true
}

// isOutranked reports whether some allowed entry, or its NAT64 form, is for a part of e and longer than a length.
func (e Entry) isOutranked(allowed []string, length int) bool {
	return slices.ContainsFunc(allowed, func(text string) bool {
		a, ok := listed(text)
		return ok && slices.ContainsFunc(a.forms(), func(f Entry) bool { return f.meets(e) && f.length() > length })
	})
}

// denySpecific is Deny for a policy with precedence: specific.
func denySpecific(s policy.Spec, e Entry) Change {
	allowed, denied := e.lists(&s)
	for _, d := range *denied {
		if by, ok := listed(d); ok && e.deniedAllBy(by, *allowed) {
			return unchanged(s, "%q denies it already", d)
		}
	}
	more := slices.Clone(*denied)
	deny := func(o Entry) {
		if !slices.Contains(more, o.text) {
			more = append(more, o.text)
		}
	}
	deny(e)
	rest := without(*allowed, e.coversSome)
	for _, text := range rest {
		a, _ := listed(text)
		for _, f := range a.forms() {
			if !f.meets(e) || f.length() <= e.length() {
				continue
			}
			if !f.isAddress() { // it is for more ports than e
				f.text = f.pattern.WithPort(e.pattern.Port()).String()
			}
			deny(f)
		}
	}
	if len(rest) == 0 && len(*allowed) > 0 {
		rest = (*allowed)[:1]
		if kept, ok := listed(rest[0]); ok {
			deny(kept)
		}
	}
	*allowed, *denied = rest, more
	return Change{s, true, "denied"}
}

package amend

import (
	"fmt"

	"boxgate/policy"
)

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

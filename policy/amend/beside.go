package amend

import (
	"fmt"

	"boxgate/policy"
)

// Beside returns what a policy is while entries are allowed and denied beside it for a time. What it denies stays denied, and
// so does what is denied beside it, whatever is allowed. An entry that is allowed already changes nothing: in a policy that
// only denies, an allowed entry would deny everything else. The policy is not modified.
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
		c, _ := Allow(s, e) // nothing is listed that could be in the way
		return c.Spec
	}
	list, _ := e.lists(&s)
	switch {
	case s.Mode != policy.ModeCustom || len(s.AllowedDomains)+len(s.AllowedCIDRs) == 0 || e.coveredBy(*list) != "":
		return s
	case len(s.AllowedDomains) == 0 && s.DNS == "":
		s.DNS = policy.DNSResolve // as it was by default, which the first name would change
	}
	*list = added(*list, e)
	return s
}

// denyBeside adds the entry to what is denied, and takes nothing from what is allowed: denied wins.
func denyBeside(s policy.Spec, e Entry) policy.Spec {
	if s.Mode != policy.ModeCustom {
		return Deny(s, e).Spec
	}
	_, list := e.lists(&s)
	if e.coveredBy(*list) == "" {
		*list = added(*list, e)
	}
	return s
}

// Idle says why allowing or denying an entry beside a policy has no effect at present; "" if it has one. What the policy
// denies cannot be allowed beside it: that is an error.
func (e Entry) Idle(s policy.Spec, allow bool) (why string, err error) {
	c := Deny(s, e)
	if allow {
		_, denied := e.lists(&s)
		if by := e.coveredBy(*denied); by != "" {
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

package remedy

import (
	"fmt"
	"slices"
	"strings"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// NearMiss returns which entry of a policy nearly allows a denied destination, and why it does not, or "". The entry is the
// operator's own text, and the name is canonical, so the result is safe to print.
func NearMiss(spec policy.Spec, e audit.Event) string {
	host, err := name.Parse(e.Name)
	if err != nil || e.Verdict != policy.Deny || e.Reason != name.ReasonNotAllowed || policy.IsOfCeiling(e.Rule) || isByAddressAlone(e) {
		return ""
	}
	var patterns []name.Pattern
	for _, entry := range spec.AllowedDomains {
		if p, err := name.ParsePattern(entry); err == nil {
			patterns = append(patterns, p)
		}
	}
	if ports := otherPorts(patterns, host, e); ports != "" {
		return ports
	}
	for _, p := range patterns {
		parent := p.Name()
		switch {
		case parent.IsZero():
		case p.IsWildcard() && parent == host:
			return fmt.Sprintf("%q does not cover %s itself", p, host)
		case !p.IsWildcard() && strings.HasSuffix(host.String(), "."+parent.String()):
			return fmt.Sprintf("%q does not cover names below it, such as %s; \"*.%s\" does", p, host, p)
		}
	}
	for _, p := range patterns {
		if of := p.Name().String(); !p.IsWildcard() && isMisspelled(host.String(), of) {
			return fmt.Sprintf("the policy allows %q, which is spelled differently", p)
		}
	}
	return ""
}

// minSpelled is the length from which labels that differ in one character are taken for misspelled.
const minSpelled = 5

// isMisspelled reports whether names differ in one label only, and there in one character.
func isMisspelled(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	if len(as) != len(bs) {
		return false
	}
	i := 0
	for i < len(as) && as[i] == bs[i] {
		i++
	}
	return i < len(as) && slices.Equal(as[i+1:], bs[i+1:]) && min(len(as[i]), len(bs[i])) >= minSpelled && oneEdit(as[i], bs[i])
}

// otherPorts returns on which ports a name is allowed, if it is, but not on that of the event.
func otherPorts(patterns []name.Pattern, host name.Name, e audit.Event) string {
	if e.Port == 0 || e.Stage == policy.StageDNS {
		return ""
	}
	var ports []string
	for _, p := range patterns {
		if p.Port() != 0 && p.Port() != e.Port && p.Match(host, p.Port()) {
			ports = append(ports, fmt.Sprint(p.Port()))
		}
	}
	if len(ports) == 0 {
		return ""
	}
	slices.Sort(ports)
	ports = slices.Compact(ports)
	if len(ports) > 1 {
		return fmt.Sprintf("the policy allows %s on the ports %s, not on %d", host, strings.Join(ports, ", "), e.Port)
	}
	return fmt.Sprintf("the policy allows %s on port %s, not on %d", host, ports[0], e.Port)
}

// oneEdit reports whether a and b differ in one character that is added, missing, different, or swapped with the next one.
func oneEdit(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	switch {
	case len(b)-len(a) > 1 || a == b:
		return false
	case len(a) < len(b):
		return a[i:] == b[i+1:]
	case a[i+1:] == b[i+1:]:
		return true
	}
	return i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}

// Package lint finds entries of a policy that allow more than they need to: by themselves, and by the traffic that the box has had.
package lint

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"

	"boxgate/observe"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
)

// Kind is the kind of a [Finding].
type Kind string

// The kinds.
const (
	KindOpen   Kind = "open"   // everything is allowed
	KindSuffix Kind = "suffix" // anybody can register a name that the entry covers
	KindRange  Kind = "range"  // the addresses have many owners
	KindWhole  Kind = "whole"  // all ports and protocols of addresses, although the traffic uses few
	KindPort   Kind = "port"   // every port, although the traffic uses few
	KindUnused Kind = "unused" // no traffic used the entry
)

// Finding is an entry that allows more than it needs to.
type Finding struct {
	Kind    Kind   `json:"kind"`
	Pointer string `json:"pointer"` // into the policy
	Entry   string `json:"entry"`
	Text    string `json:"text"`
}

// Window is the time after which an entry without traffic is reported, if the traffic of so long is known.
const Window = 30 * 24 * time.Hour

// minWindow is the shortest known traffic by which an entry counts as unused.
const minWindow = 24 * time.Hour

// fewPorts is how many ports of an entry are used if it counts as too wide.
const fewPorts = 3

// Check returns the findings about a policy, in its order. seen is the traffic of the box; an empty one gives the findings about the
// entries themselves.
func Check(spec policy.Spec, seen observe.Summary, now time.Time) (out []Finding) {
	l := linter{uses: usesOf(seen, now.Add(-Window)), doubt: seen.Overflow + seen.Lost}
	l.known = min(knownFor(seen, now), Window)
	if spec.DefaultAllow() {
		out = append(out, Finding{KindOpen, "/mode", string(spec.Mode), "everything is allowed that no list denies; name what the box needs in allowed_domains"})
	}
	for i, entry := range spec.AllowedDomains {
		if p, err := name.ParsePattern(entry); err == nil {
			out = append(out, l.domain(document.Element("/allowed_domains", i), entry, p)...)
		}
	}
	for i, entry := range spec.AllowedCIDRs {
		if p, err := name.ParseCIDR(entry); err == nil {
			out = append(out, l.cidr(document.Element("/allowed_cidrs", i), entry, p)...)
		}
	}
	return out
}

// linter has the traffic by entry.
type linter struct {
	uses  map[string]*use
	known time.Duration // how long the known traffic reaches back
	doubt uint64        // decisions that are in no observation
}

// use is the traffic that an entry allowed.
type use struct {
	ports  []string // such as "443" or "53/udp"
	looked bool     // DNS queries
}

// usesOf returns the uses of entries since a time. Decisions name the entry that decided.
func usesOf(seen observe.Summary, since time.Time) map[string]*use {
	uses := map[string]*use{}
	for i := range seen.Observations {
		o := &seen.Observations[i]
		if o.Verdict != policy.Allow || o.Rule == "" || o.Last.Before(since) {
			continue
		}
		u := uses[o.Rule]
		if u == nil {
			u = &use{}
			uses[o.Rule] = u
		}
		if o.Stage == policy.StageDNS {
			u.looked = true
			continue
		}
		port := strconv.Itoa(int(o.Port))
		if o.Protocol != policy.TCP {
			port = strings.TrimPrefix(port+"/"+string(o.Protocol), "0/")
		}
		if !slices.Contains(u.ports, port) {
			u.ports = append(u.ports, port)
		}
	}
	return uses
}

// knownFor returns for how long the traffic is known: since the first observation, and since nothing was removed.
func knownFor(seen observe.Summary, now time.Time) time.Duration {
	first := now
	for i := range seen.Observations {
		if at := seen.Observations[i].First; at.Before(first) {
			first = at
		}
	}
	if seen.Since.After(first) {
		first = seen.Since
	}
	return now.Sub(first)
}

func (l *linter) domain(at, entry string, p name.Pattern) (out []Finding) {
	add := func(k Kind, format string, args ...any) {
		out = append(out, Finding{k, at, entry, fmt.Sprintf(format, args...)})
	}
	if base := p.Name().String(); p.IsWildcard() {
		if suffix, _ := publicsuffix.PublicSuffix(base); base == "" {
			add(KindSuffix, "covers every name")
		} else if suffix == base {
			add(KindSuffix, "%s is a public suffix: anybody can have a name below it", base)
		}
	}
	u := l.uses[entry]
	switch {
	case u == nil || len(u.ports) == 0:
		out = append(out, l.unused(at, entry, u)...)
	case p.Port() == 0 && len(u.ports) <= fewPorts && l.known >= minWindow:
		add(KindPort, "allows every port, and %s used; %s would do", are(u.ports), join(p.WithPort(0).String(), u.ports))
	}
	return out
}

func (l *linter) cidr(at, entry string, p netip.Prefix) (out []Finding) {
	if bits := p.Bits(); p.Addr().Is4() && bits < 16 || p.Addr().Is6() && bits < 32 {
		out = append(out, Finding{KindRange, at, entry, "has the addresses of many owners"})
	}
	u := l.uses[entry]
	switch {
	case u == nil || len(u.ports) == 0:
		out = append(out, l.unused(at, entry, u)...)
	case len(u.ports) <= fewPorts && l.known >= minWindow:
		out = append(out, Finding{KindWhole, at, entry, fmt.Sprintf("allows every port, UDP and ICMP, and %s used; an entry of allowed_domains can have a port", are(u.ports))})
	}
	return out
}

// unused returns a finding if enough traffic is known.
func (l *linter) unused(at, entry string, u *use) []Finding {
	if l.known < minWindow {
		return nil
	}
	text := fmt.Sprintf("not used in the last %d days", int(l.known.Hours()/24))
	if l.known < 2*minWindow {
		text = "not used in the last day"
	}
	if u != nil {
		text = strings.Replace(text, "not used", "looked up, but not connected to,", 1)
	}
	if l.known < Window {
		text += ", which is all that is known"
	}
	if l.doubt > 0 {
		text += fmt.Sprintf(" (but %d decisions are in no observation)", l.doubt)
	}
	return []Finding{{KindUnused, at, entry, text}}
}

func are(ports []string) string {
	if len(ports) == 1 {
		return "only " + ports[0] + " is"
	}
	return "only " + strings.Join(ports, ", ") + " are"
}

func join(host string, ports []string) string {
	var all []string
	for _, p := range ports {
		all = append(all, host+":"+p)
	}
	return strings.Join(all, ", ")
}

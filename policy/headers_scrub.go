package policy

import (
	"slices"
	"strings"

	"boxgate/policy/name"
)

// hostKey is the host of a header rule, whatever its port.
type hostKey struct {
	name string
	wild bool
}

// hostScrub is what responses of a host must not show on any port, whichever rule applied, or none: a server that was sent a
// secret with one request may show it in the answer to another, and on another port.
type hostScrub struct {
	SharedScrub
	rules int // on whose ports something is masked
}

// newHostScrubs collects by host what rules mask. A host whose rules mask nothing has an entry as well if others do: they may
// be exceptions from those of a wildcard.
func newHostScrubs(rules map[headerKey]*alternatives) map[hostKey]*hostScrub {
	hosts, scrubs := map[hostKey][]headerKey{}, false
	for key, of := range rules {
		host := hostKey{key.name, key.wild}
		hosts[host] = append(hosts[host], key)
		scrubs = scrubs || of.scrubs()
	}
	if !scrubs {
		return nil
	}
	all := make(map[hostKey]*hostScrub, len(hosts))
	for host := range hosts {
		sum, seen := &hostScrub{}, map[uint16]bool{}
		for at, more := host, true; more; {
			for _, key := range hosts[at] {
				if !seen[key.port] { // else a more specific pattern covers the port
					sum.add(rules[key])
				}
				seen[key.port] = true
			}
			at.wild = true
			_, at.name, more = strings.Cut(at.name, ".")
		}
		all[host] = sum
	}
	return all
}

// scrubs reports whether some alternative scrubs.
func (of *alternatives) scrubs() bool {
	return slices.ContainsFunc(of.list, func(a alternative) bool { return a.Scrub })
}

// add adds the rules of one port, if one of them scrubs.
func (h *hostScrub) add(of *alternatives) {
	if !of.scrubs() {
		return
	}
	note := func(literal name.Secret, source string) {
		if h.Sources = h.Sources || source != ""; source == "" {
			h.Literals = append(h.Literals, literal)
		}
	}
	for i := range of.list {
		of.list[i].eachSent(note)
		h.Sources = h.Sources || len(of.list[i].Query) > 0 || of.list[i].Sign.AWS != nil
	}
	h.rules += len(of.list)
}

// scrubOf returns what is masked on every port of a host; nil or empty if nothing is.
func (t *headerTable) scrubOf(n name.Name) *hostScrub {
	if len(t.scrubs) == 0 || n.IsZero() {
		return nil
	}
	of := t.scrubs[hostKey{n.String(), false}]
	for _, at, more := strings.Cut(n.String(), "."); of == nil && more; _, at, more = strings.Cut(at, ".") {
		of = t.scrubs[hostKey{at, true}]
	}
	return of
}

// addHost completes the rule for a request by what is masked for other rules of its host.
func (t *headerTable) addHost(rule *HeaderRule, n name.Name) {
	if of := t.scrubOf(n); of != nil && of.rules > 0 && (!rule.Scrub || of.rules > 1) {
		rule.Scrub, rule.Shared = true, &of.SharedScrub
	}
}

// ScrubRule returns the rule for requests in the clear: it sends nothing, and masks what rules for
// the host send on other ports.
func (c *Compiled) ScrubRule(n name.Name) (rule HeaderRule) {
	if c != nil {
		c.headers.addHost(&rule, n)
	}
	return rule
}

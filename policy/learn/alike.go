package learn

import (
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/publicsuffix"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/policy/preset"
)

// This part finds names that imitate others. A box chooses thousands of names, and a policy may have as many, so no name is compared with all
// others.

// known are names that are not suspected to imitate others.
type known struct {
	given  map[Destination]bool // names and ports of entries of the policy, those of wildcards with "*."
	hosts  []string             // registrable domains, sorted
	at     map[string]int       // of each in hosts
	deep   int                  // most labels of one
	labels []string             // their first labels, in the same order
	folded map[string][]int     // at most two hosts with different labels by the folded label
	near   map[uint64]int       // the latest of links by the hash of a label, or of one without a character
	links  []link
	seed   maphash.Seed
}

// link is a host whose label has a hash.
type link struct{ host, before int }

// presetHosts are the patterns of all presets.
var presetHosts = sync.OnceValue(func() (out []name.Pattern) {
	for _, of := range preset.Names() {
		if p, err := preset.Find(of); err == nil {
			out = append(out, patterns(p.AllowedDomains...)...)
		}
	}
	return out
})

// knownNames collects the names of a policy and of the presets.
func knownNames(now policy.Spec) *known {
	k := &known{given: map[Destination]bool{}, at: map[string]int{}, folded: map[string][]int{}, near: map[uint64]int{}, seed: maphash.MakeSeed()}
	given := patterns(now.AllowedDomains...)
	for _, p := range given {
		text := p.Name().String()
		if p.IsWildcard() {
			text = "*." + text
		}
		k.given[Destination{Name: text, Port: p.Port()}] = !p.Name().IsZero()
	}
	for _, p := range slices.Concat(given, presetHosts()) {
		if domain, err := publicsuffix.EffectiveTLDPlusOne(p.Name().String()); err == nil {
			k.at[domain] = 0
		}
	}
	k.hosts = slices.Sorted(maps.Keys(k.at))
	for i, d := range k.hosts {
		k.at[d], k.deep = i, max(k.deep, strings.Count(d, ".")+1)
		label, _, _ := strings.Cut(d, ".")
		k.labels = append(k.labels, label)
		if len(label) < shortest {
			continue
		}
		if of := k.folded[fold(label)]; len(of) == 0 || len(of) == 1 && k.labels[of[0]] != label {
			k.folded[fold(label)] = append(of, i)
		}
		k.eachVariant(label, func(hash uint64) {
			k.links = append(k.links, link{i, k.near[hash]})
			k.near[hash] = len(k.links) // 0 ends the list
		})
	}
	return k
}

// eachVariant calls f with the hashes of a label and of the label without each of its characters. Labels that differ in one character have a
// variant in common.
func (k *known) eachVariant(label string, f func(hash uint64)) {
	f(maphash.String(k.seed, label))
	var buffer [64]byte
	for i := range len(label) {
		f(maphash.Bytes(k.seed, append(append(buffer[:0], label[:i]...), label[i+1:]...)))
	}
}

// isGiven reports whether an entry of the policy other than "*" allows a host.
func (k *known) isGiven(n name.Name, port uint16) bool {
	allows := func(text string) bool {
		return k.given[Destination{Name: text}] || k.given[Destination{Name: text, Port: port}]
	}
	if allows(n.String()) {
		return true
	}
	for _, at, more := strings.Cut(n.String(), "."); more; _, at, more = strings.Cut(at, ".") {
		if allows("*." + at) {
			return true
		}
	}
	return false
}

// doubt returns why a host should not become an entry unseen, "" if there is no doubt, and the name that it imitates. Hosts that the
// policy names are not doubted.
func (h *host) doubt(k *known) (why Why, like string) {
	n, err := name.Parse(h.Name)
	if err != nil || k.isGiven(n, h.Port) {
		return "", ""
	}
	switch like = k.imitated(h.Name); {
	case like != "":
		return WhyLookAlike, like
	case strings.HasPrefix(h.Name, "xn--") || strings.Contains(h.Name, ".xn--"):
		return WhyPunycode, ""
	case isTelemetry(n, h.Port):
		return WhyTelemetry, ""
	}
	return "", ""
}

// shortest is the length of the shortest label that is compared: shorter ones resemble each other by chance.
const shortest = 5

// imitated returns the known domain that a name imitates: its registrable domain differs in one character, two exchanged ones, or ones
// that look alike; or the name contains the known domain, as in github.com.example.net. Of several it returns the first.
func (k *known) imitated(host string) string {
	domain, err := publicsuffix.EffectiveTLDPlusOne(host)
	if err != nil {
		return ""
	}
	if _, is := k.at[domain]; is {
		return ""
	}
	first := k.contained(host)
	label, _, _ := strings.Cut(domain, ".")
	for _, i := range k.folded[fold(label)] {
		if k.labels[i] != label {
			first = min(first, i)
		}
	}
	k.eachVariant(label, func(hash uint64) {
		for at := k.near[hash]; at > 0; at = k.links[at-1].before {
			if i := k.links[at-1].host; i < first && k.labels[i] != label && isNear(label, k.labels[i]) {
				first = i
			}
		}
	})
	if first == len(k.hosts) {
		return ""
	}
	return k.hosts[first]
}

// contained returns the first known domain that other labels of a host follow, or the number of domains.
func (k *known) contained(host string) (first int) {
	first = len(k.hosts)
	labels := strings.Split(host, ".")
	for from := range labels {
		for to := from + 1; to < len(labels) && to-from <= k.deep; to++ {
			if i, is := k.at[strings.Join(labels[from:to], ".")]; is {
				first = min(first, i)
			}
		}
	}
	return first
}

// fold replaces characters and pairs by others that look alike.
func fold(s string) string { return alike.Replace(s) }

var alike = strings.NewReplacer("0", "o", "1", "l", "i", "l", "rn", "m", "vv", "w", "-", "")

// isNear reports whether two labels differ in one inserted, removed or replaced character, or two adjacent ones that were exchanged.
func isNear(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) > 1 {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if len(a) < len(b) {
		return a[i:] == b[i+1:]
	}
	return i == len(a) || a[i+1:] == b[i+1:] || i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}

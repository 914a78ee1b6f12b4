package config

import (
	"slices"
	"strings"

	"boxgate/policy/name"
)

// Domains list which API keys may give their URLs custom host names below a domain.
type Domains []Domain

// Domain is one entry of the list.
type Domain struct {
	Suffix string   `yaml:"suffix"` // covers this name and all names below it
	Keys   []string `yaml:"keys"`   // IDs or names of API keys; empty: only admin keys
}

// ForName returns the entry with the longest suffix that covers a name, or nil.
func (d Domains) ForName(n name.Name) *Domain {
	var found *Domain
	for i := range d {
		suffix, err := name.Parse(d[i].Suffix)
		if err == nil && n.IsWithin(suffix) && (found == nil || len(suffix.String()) > len(found.Suffix)) {
			found = &d[i]
		}
	}
	return found
}

// ListsKey reports whether the entry contains an API key.
func (d *Domain) ListsKey(id, name string) bool {
	return slices.ContainsFunc(d.Keys, func(k string) bool { return k != "" && (k == id || k == name) })
}

func (d Domains) check(fail func(key, format string, args ...any)) {
	const key = "ingress.domains"
	seen := map[name.Name]bool{}
	for _, row := range d {
		suffix, err := name.Parse(row.Suffix)
		switch {
		case err != nil:
			fail(key, "suffix %q is not a domain such as example.org; it is for all names at and below it", row.Suffix)
		case row.Suffix != suffix.String():
			fail(key, "suffix %q must be written as %q", row.Suffix, suffix)
		case seen[suffix]:
			fail(key, "suffix %q is listed twice; list all keys in one entry", row.Suffix)
		}
		seen[suffix] = true
		if slices.ContainsFunc(row.Keys, func(k string) bool { return strings.TrimSpace(k) == "" }) {
			fail(key, "suffix %q has a key without an ID or name; see gateway api-key list", row.Suffix)
		}
	}
}

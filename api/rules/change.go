package rules

import (
	"slices"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/policy"
)

// listMost bounds how many entries of a list a change names.
const listMost = 50

// listChange is how a list has changed.
type listChange struct {
	Added   []string `json:"added,omitempty"`
	Removed []string `json:"removed,omitempty"`
	More    int      `json:"more,omitempty"` // entries that were added or removed and are not named
}

// changeOf compares two lists; nil if they have the same entries.
func changeOf(before, after []string) *listChange {
	had, has := map[string]bool{}, map[string]bool{}
	for _, s := range before {
		had[s] = true
	}
	for _, s := range after {
		has[s] = true
	}
	var c listChange
	name := func(list []string, other map[string]bool, into *[]string) {
		for _, s := range list {
			switch {
			case other[s]:
			case len(*into) < listMost:
				*into = append(*into, s)
			default:
				c.More++
			}
		}
	}
	name(after, had, &c.Added)
	name(before, has, &c.Removed)
	if len(c.Added)+len(c.Removed) == 0 {
		return nil
	}
	return &c
}

// policyChange is how a policy has changed. Request rules, whose matches may have values, are only counted.
type policyChange struct {
	Version        uint64      `json:"version"`
	Mode           []string    `json:"mode,omitempty"` // before and after
	DNS            []string    `json:"dns,omitempty"`
	AllowedDomains *listChange `json:"allowed_domains,omitempty"`
	DeniedDomains  *listChange `json:"denied_domains,omitempty"`
	AllowedCIDRs   *listChange `json:"allowed_cidrs,omitempty"`
	DeniedCIDRs    *listChange `json:"denied_cidrs,omitempty"`
	Rules          []int       `json:"rules,omitempty"` // how many there were, and are
	Repos          []int       `json:"repos,omitempty"`
}

func policyChanged(id policy.BoxID, before, after policy.Spec, version uint64) *rest.Change {
	c := policyChange{
		Version: version, AllowedDomains: changeOf(before.AllowedDomains, after.AllowedDomains), DeniedDomains: changeOf(before.DeniedDomains, after.DeniedDomains),
		AllowedCIDRs: changeOf(before.AllowedCIDRs, after.AllowedCIDRs), DeniedCIDRs: changeOf(before.DeniedCIDRs, after.DeniedCIDRs),
		Rules: []int{len(before.Rules), len(after.Rules)}, Repos: []int{len(before.Repos), len(after.Repos)},
	}
	if before.Mode != after.Mode {
		c.Mode = []string{string(before.Mode), string(after.Mode)}
	}
	if before.DNS != after.DNS {
		c.DNS = []string{string(before.DNS), string(after.DNS)}
	}
	return &rest.Change{Box: id, What: map[string]any{"policy": c}}
}

// headersChanged says which headers are set now for which hosts.
func headersChanged(id policy.BoxID, after []policy.HeaderRule, version uint64) *rest.Change {
	hosts := []string{}
	for _, rule := range after {
		hosts = append(hosts, rule.Pattern.String())
	}
	slices.Sort(hosts)
	hosts = slices.Compact(hosts)
	n := len(hosts)
	return &rest.Change{Box: id, What: map[string]any{"headers": map[string]any{"version": version, "hosts": hosts[:min(n, listMost)], "count": n}}}
}

// changedHeaders is the answer to a change of header rules.
func changedHeaders(id policy.BoxID, s api.HeaderState) rest.Reply {
	reply := viewHeaders(s)
	reply.Change = headersChanged(id, s.Rules, s.Version)
	return reply
}

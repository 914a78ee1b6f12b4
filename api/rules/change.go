package rules

import (
	"slices"
	"time"

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
	Named          []string    `json:"named,omitempty"` // that it followed, and follows
	Rules          []int       `json:"rules,omitempty"` // how many there were, and are
	Repos          []int       `json:"repos,omitempty"`
	UpstreamProxy  []string    `json:"upstream_proxy,omitempty"` // its URL before and after; empty: none
	ResolveThere   *listChange `json:"resolve_there,omitempty"`
	Leases         *listChange `json:"leases,omitempty"` // with the time when they end
}

// policyChanged says how the policy of a box has changed, with its temporary entries.
func policyChanged(id policy.BoxID, was, is api.PolicyState) *rest.Change {
	return &rest.Change{Box: id, What: map[string]any{"policy": changeOfPolicy(was, is)}}
}

// namedChanged says how a named policy has changed, and for how many boxes.
func namedChanged(was, is api.NamedPolicy) *rest.Change {
	return &rest.Change{What: map[string]any{"named_policy": map[string]any{
		"name": is.Name, "boxes": len(is.Boxes), "policy": changeOfPolicy(api.PolicyState{Spec: was.Spec}, api.PolicyState{Spec: is.Spec, Version: is.Version}),
	}}}
}

func changeOfPolicy(was, is api.PolicyState) policyChange {
	before, after := was.Spec, is.Spec
	c := policyChange{
		Version: is.Version, AllowedDomains: changeOf(before.AllowedDomains, after.AllowedDomains), DeniedDomains: changeOf(before.DeniedDomains, after.DeniedDomains),
		AllowedCIDRs: changeOf(before.AllowedCIDRs, after.AllowedCIDRs), DeniedCIDRs: changeOf(before.DeniedCIDRs, after.DeniedCIDRs),
		Rules: []int{len(before.Rules), len(after.Rules)}, Repos: []int{len(before.Repos), len(after.Repos)},
	}
	if before.Mode != after.Mode {
		c.Mode = []string{string(before.Mode), string(after.Mode)}
	}
	if before.DNS != after.DNS {
		c.DNS = []string{string(before.DNS), string(after.DNS)}
	}
	if was.Named != is.Named {
		c.Named = []string{was.Named, is.Named}
	}
	urlBefore, thereBefore := upstreamOf(before)
	url, there := upstreamOf(after)
	if urlBefore != url {
		c.UpstreamProxy = []string{urlBefore, url}
	}
	c.ResolveThere, c.Leases = changeOf(thereBefore, there), changeOf(namesOf(was.Leases), namesOf(is.Leases))
	return c
}

// upstreamOf returns the URL of a policy's upstream proxy, which has no credentials, and the names that it resolves.
func upstreamOf(s policy.Spec) (url string, there []string) {
	if s.UpstreamProxy == nil {
		return "", nil
	}
	return s.UpstreamProxy.URL, s.UpstreamProxy.ResolveThere
}

// namesOf names temporary entries.
func namesOf(list []api.Lease) (names []string) {
	for _, l := range list {
		names = append(names, actionOf(l.Allow)+" "+l.Entry+" until "+l.ExpiresAt.UTC().Format(time.RFC3339))
	}
	return names
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

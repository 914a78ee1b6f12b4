// Package change describes changes for the audit trail: names that were added, removed or changed. A description contains
// neither secret values nor the texts of matches, which may be secret.
//
// A description contains at most [Whole] bytes of names. Further names are only counted.
package change

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/policy"
	"boxgate/policy/match"
)

// Limits of the names in one description, in bytes.
const (
	Whole = 64 << 10 // of the requested change
	Brief = 2 << 10  // of its consequence for one of many boxes
)

// List describes how a list has changed.
type List struct {
	Added   []string `json:"added,omitempty"`
	Removed []string `json:"removed,omitempty"`
	Changed []string `json:"changed,omitempty"` // the entry exists before and after, with different rules
	More    int      `json:"more,omitempty"`    // number of entries that did not fit
}

// budget is the number of bytes left for names.
type budget int

func (r *budget) add(c *List, s string, into *[]string) {
	if len(s) > int(*r) {
		c.More++
		*r = 0 // otherwise a later, shorter name would look like the next one
		return
	}
	*r -= budget(len(s))
	*into = append(*into, s)
}

// list compares two lists. It returns nil if they have the same entries.
func (r *budget) list(before, after []string) *List {
	if slices.Equal(before, after) {
		return nil
	}
	before, after = distinct(before), distinct(after)
	var c List
	for _, s := range beyond(after, before) {
		r.add(&c, s, &c.Added)
	}
	for _, s := range beyond(before, after) {
		r.add(&c, s, &c.Removed)
	}
	return c.ifAny()
}

// distinct returns the entries of a list in order, each once.
func distinct(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }

// beyond returns the entries of a sorted list that another sorted list lacks.
func beyond(list, other []string) (more []string) {
	for _, s := range list {
		for len(other) > 0 && other[0] < s {
			other = other[1:]
		}
		if len(other) == 0 || other[0] != s {
			more = append(more, s)
		}
	}
	return more
}

// ifAny returns the list, or nil if it has no differences.
func (c *List) ifAny() *List {
	if len(c.Added)+len(c.Removed)+len(c.Changed)+c.More == 0 {
		return nil
	}
	return c
}

// texts compares two maps by name. It returns nil if they are equal.
func (r *budget) texts(before, after map[string]string) *List {
	var c List
	for _, name := range slices.Sorted(maps.Keys(after)) {
		switch text, had := before[name]; {
		case !had:
			r.add(&c, name, &c.Added)
		case text != after[name]:
			r.add(&c, name, &c.Changed)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, has := after[name]; !has {
			r.add(&c, name, &c.Removed)
		}
	}
	return c.ifAny()
}

// Names describes the change of a list of names, or returns nil if there is no change.
func Names(before, after []string) *List {
	left := budget(Whole)
	return left.list(before, after)
}

// PolicyChange describes the change of a policy. Request rules are reduced to their hosts, because their matches may
// contain secrets.
type PolicyChange struct {
	Version        uint64   `json:"version"`
	Mode           []string `json:"mode,omitempty"` // before and after
	Precedence     []string `json:"precedence,omitempty"`
	DNS            []string `json:"dns,omitempty"`
	DeniedNames    []string `json:"denied_names,omitempty"`
	AllowedDomains *List    `json:"allowed_domains,omitempty"`
	DeniedDomains  *List    `json:"denied_domains,omitempty"`
	AllowedCIDRs   *List    `json:"allowed_cidrs,omitempty"`
	DeniedCIDRs    *List    `json:"denied_cidrs,omitempty"`
	Named          []string `json:"named,omitempty"` // before and after
	Rules          []int    `json:"rules,omitempty"` // number of rules before and after
	RuleHosts      *List    `json:"rule_hosts,omitempty"`
	Repos          *List    `json:"repos,omitempty"`
	UpstreamProxy  []string `json:"upstream_proxy,omitempty"` // its URL before and after; empty: no proxy
	ResolveThere   *List    `json:"resolve_there,omitempty"`
	Leases         *List    `json:"leases,omitempty"` // with their expiry
}

// Policy describes the change of a box's policy, including its leases, with up to most bytes of names. A zero was
// stands for no policy.
func Policy(was, is api.PolicyState, most int) PolicyChange {
	before, after, left := was.Spec, is.Spec, budget(most)
	c := PolicyChange{Version: is.Version, Mode: pair(string(before.Mode), string(after.Mode)), DNS: pair(string(before.DNS), string(after.DNS)), Named: pair(was.Named, is.Named)}
	c.Precedence = pair(string(before.Precedence), string(after.Precedence))
	c.DeniedNames = pair(string(before.DeniedNames), string(after.DeniedNames))
	c.Leases = left.list(namesOf(was.Leases), namesOf(is.Leases))
	c.AllowedDomains, c.DeniedDomains = left.list(before.AllowedDomains, after.AllowedDomains), left.list(before.DeniedDomains, after.DeniedDomains)
	c.AllowedCIDRs, c.DeniedCIDRs = left.list(before.AllowedCIDRs, after.AllowedCIDRs), left.list(before.DeniedCIDRs, after.DeniedCIDRs)
	if c.RuleHosts = left.texts(ruleHosts(before.Rules), ruleHosts(after.Rules)); c.RuleHosts != nil {
		c.Rules = []int{len(before.Rules), len(after.Rules)}
	}
	c.Repos = left.list(reposOf(before.Repos), reposOf(after.Repos))
	urlBefore, thereBefore := upstreamOf(before)
	url, there := upstreamOf(after)
	c.UpstreamProxy, c.ResolveThere = pair(urlBefore, url), left.list(thereBefore, there)
	return c
}

// pair returns a text before and after, or nil if it is unchanged.
func pair(before, after string) []string {
	if before == after {
		return nil
	}
	return []string{before, after}
}

// ruleHosts returns the rules of each host, in order, as text for comparison. The text may contain secrets.
func ruleHosts(rules []match.RequestRule) map[string]string {
	m := map[string]string{}
	for _, rule := range rules {
		hosts := rule.Hosts
		rule.Hosts = nil
		text, err := json.Marshal(rule)
		if err != nil {
			continue // a parsed rule can always be encoded
		}
		for _, host := range hosts {
			m[host] += string(text) + "\n"
		}
	}
	return m
}

// reposOf formats repository rules as names.
func reposOf(rules []match.RepoRule) (names []string) {
	for _, r := range rules {
		names = append(names, strings.TrimSpace(r.Host+" "+r.Name+" "+r.Access))
	}
	return names
}

// upstreamOf returns the URL of a policy's upstream proxy, which contains no credentials, and the names that the proxy
// resolves.
func upstreamOf(s policy.Spec) (url string, there []string) {
	if s.UpstreamProxy == nil {
		return "", nil
	}
	return s.UpstreamProxy.URL, s.UpstreamProxy.ResolveThere
}

// namesOf formats leases as names.
func namesOf(list []api.Lease) (names []string) {
	for _, l := range list {
		what := strings.TrimSpace(l.Action() + " " + l.Entry)
		names = append(names, what+" until "+l.ExpiresAt.UTC().Format(time.RFC3339))
	}
	return names
}

// OfPolicy describes a change of the policy of a box, and of its header rules if they changed in the same call.
func OfPolicy(id policy.BoxID, is api.PolicyState) *rest.Change {
	var was api.PolicyState
	if is.Was != nil {
		was = *is.Was
	}
	what := map[string]any{"policy": Policy(was, is, Whole)}
	if h := is.Headers; h != nil {
		what["headers"] = Headers(h.Was, h.Rules, h.Version)
	}
	return &rest.Change{Box: id, PolicyVersion: is.Version, What: what}
}

// OfApproval describes the answer to a request of a box for access, and the change of the policy that it made, if any.
func OfApproval(a api.Approval, given api.ApprovalAnswer, is *api.PolicyState) *rest.Change {
	what := map[string]any{"approval": map[string]any{
		"id": a.ID, "entry": a.Entry, "answer": given.Answer, "reason": given.Reason, "asked": a.Reason, "candidate": given.Digest,
	}}
	c := &rest.Change{Box: a.Box, What: what}
	if is != nil {
		var was api.PolicyState
		if is.Was != nil {
			was = *is.Was
		}
		c.PolicyVersion, what["policy"] = is.Version, Policy(was, *is, Whole)
	}
	return c
}

// OfNamed describes a change of a named policy, and of the policies of the boxes that follow it.
func OfNamed(is api.NamedPolicy) *rest.Change {
	c := &rest.Change{What: map[string]any{"named_policy": ofFleet(is, map[string]any{
		"name": is.Name, "boxes": len(is.Boxes), "policy": Policy(api.PolicyState{Spec: is.Was}, api.PolicyState{Spec: is.Spec, Version: is.Version}, Whole),
	})}}
	for _, f := range is.Followers {
		c.Also = append(c.Also, rest.Change{Box: f.Box, PolicyVersion: f.Is.Version, What: map[string]any{
			"policy": Policy(f.Was, f.Is, Brief), "named_policy": ofFleet(is, map[string]any{"name": is.Name, "version": is.Version}),
		}})
	}
	return c
}

// OfNamedDeleted describes the deletion of a named policy.
func OfNamedDeleted(was api.NamedPolicy) *rest.Change {
	return &rest.Change{What: map[string]any{"named_policy": ofFleet(was, map[string]any{
		"name": was.Name, "deleted": true, "policy": Policy(api.PolicyState{Spec: was.Spec}, api.PolicyState{Version: was.Version}, Whole),
	})}}
}

// ofFleet marks the description of a named policy that is the fleet's.
func ofFleet(n api.NamedPolicy, what map[string]any) map[string]any {
	if n.Fleet {
		what["fleet"] = true
	}
	return what
}

// HeadersChange describes the change of a set of header rules.
type HeadersChange struct {
	Version uint64   `json:"version"`
	Hosts   []string `json:"hosts"` // patterns with rules
	Count   int      `json:"count"` // number of patterns
	Changes *List    `json:"changes,omitempty"`
	Secrets *List    `json:"secrets,omitempty"` // configured secrets, as host pattern and name
}

// Headers describes the change of a set of header rules.
func Headers(was, is []policy.HeaderRule, version uint64) HeadersChange {
	left, before, after := budget(Whole), byHost(was), byHost(is)
	had, has := map[string]string{}, map[string]string{}
	for host := range before {
		had[host] = ""
	}
	for host, rules := range after {
		if old, known := before[host]; known && !slices.EqualFunc(old, rules, equivalent) {
			has[host] = "changed"
		} else {
			has[host] = ""
		}
	}
	c := HeadersChange{Version: version, Hosts: []string{}, Count: len(after), Changes: left.texts(had, has), Secrets: left.list(secretsOf(was), secretsOf(is))}
	var rest List
	for _, host := range slices.Sorted(maps.Keys(after)) {
		left.add(&rest, host, &c.Hosts)
	}
	return c
}

// equivalent reports whether two rules for the same host are equivalent.
func equivalent(a, b policy.HeaderRule) bool {
	return a.SendsAlike(&b) && a.Scrub == b.Scrub && a.Deny == b.Deny && reflect.DeepEqual(a.Match, b.Match)
}

func byHost(rules []policy.HeaderRule) map[string][]policy.HeaderRule {
	m := map[string][]policy.HeaderRule{}
	for _, r := range rules {
		host := r.Pattern.String()
		m[host] = append(m[host], r)
	}
	return m
}

// secretsOf lists the configured secrets that the rules of each host use.
func secretsOf(rules []policy.HeaderRule) (names []string) {
	for _, r := range rules {
		for _, name := range r.Secrets() {
			names = append(names, r.Pattern.String()+": "+name)
		}
	}
	return names
}

// OfHeaders describes a change of the header rules of a box, or of the global ones for "".
func OfHeaders(id policy.BoxID, s api.HeaderState) *rest.Change {
	what := "headers"
	if s.Fleet {
		what = "fleet_headers"
	}
	return &rest.Change{Box: id, What: map[string]any{what: Headers(s.Was, s.Rules, s.Version)}}
}

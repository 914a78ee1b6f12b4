package learn

import (
	"maps"
	"slices"
	"strings"

	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// This part proposes request rules for hosts whose requests the gateway has read: plain HTTP, and hosts with header rules or request rules.

// Bounds of the rules. A host beyond them gets no paths, or no rules.
const (
	maxRuledHosts = 64
	maxRules      = 256 // of a policy
	maxMethods    = 8
	maxPaths      = 32 // of a host and method
	maxPath       = 256
)

// addRules adds request rules for the hosts whose requests were read, and then the rules that the policy has for hosts that stay allowed.
func (p *Proposal) addRules(now policy.Spec, hosts []*host) {
	var ps document.Problems
	compiled := match.CompileRules("/rules", now.Rules, &ps)
	ruled := 0
	for _, h := range slices.SortedFunc(slices.Values(hosts), func(a, b *host) int { return strings.Compare(a.entry(), b.entry()) }) {
		if len(h.requests) == 0 || ruled == maxRuledHosts {
			continue
		}
		n, err := name.Parse(h.Name)
		if err != nil {
			continue
		}
		has := slices.ContainsFunc(compiled, func(r match.CompiledRule) bool { return r.Covers(n, h.Port) })
		rules := h.rules(has)
		if len(rules) == 0 || len(p.Policy.Rules)+len(rules)+len(now.Rules) > maxRules {
			continue
		}
		ruled++
		for _, r := range rules {
			p.Policy.Rules = append(p.Policy.Rules, r.RequestRule)
			p.Requests = append(p.Requests, r.Line)
		}
	}
	for i, r := range now.Rules {
		if i < len(compiled) && stillCovers(&compiled[i], hosts) {
			p.Policy.Rules = append(p.Policy.Rules, r.Clone())
			p.Requests = append(p.Requests, Line{Entry: "of the policy"})
		}
	}
}

// stillCovers reports whether a rule of the policy is about a host that stays allowed.
func stillCovers(r *match.CompiledRule, hosts []*host) bool {
	return slices.ContainsFunc(hosts, func(h *host) bool {
		n, err := name.Parse(h.Name)
		return err == nil && r.Covers(n, h.Port)
	})
}

// proposed is a request rule with its evidence.
type proposed struct {
	match.RequestRule
	Line
}

// rules returns rules that allow the requests of a host that were seen, and deny others. If the policy has rules for the host, they are
// only about requests that it would have refused and whose paths are few, and the rules of the policy decide about others. It returns none if the requests cannot
// be described by rules.
func (h *host) rules(has bool) (list []proposed) {
	byMethod := map[string]*Evidence{}
	paths := map[string]map[string]bool{} // nil: every path
	for _, s := range h.requests {
		if has && s.Refusal == "" {
			continue
		}
		if byMethod[s.Method] == nil {
			byMethod[s.Method], paths[s.Method] = &Evidence{}, map[string]bool{}
		}
		byMethod[s.Method].add(s)
		if paths[s.Method] = withPaths(paths[s.Method], s); slices.ContainsFunc(s.Paths, match.IsAmbiguous) {
			return nil // a rule of any kind would refuse them
		}
	}
	if len(byMethod) == 0 || len(byMethod) > maxMethods {
		return nil
	}
	for _, method := range slices.Sorted(maps.Keys(byMethod)) {
		if has && len(paths[method]) == 0 { // it would come before the policy's own rules, and so lift them
			continue
		}
		r := match.RequestRule{Hosts: []string{h.entry()}, Methods: []string{method}, Action: match.ActionAllow}
		if len(paths[method]) > 0 {
			r.Paths = slices.Sorted(maps.Keys(paths[method]))
		}
		list = append(list, proposed{r, Line{method, *byMethod[method]}})
	}
	if !has {
		deny := match.RequestRule{Hosts: []string{h.entry()}, Action: match.ActionDeny}
		list = append(list, proposed{deny, Line{Entry: "everything else"}})
	}
	var ps document.Problems
	var rules []match.RequestRule
	for _, r := range list {
		rules = append(rules, r.RequestRule)
	}
	if match.CompileRules("", rules, &ps); ps.Err() != nil {
		return nil
	}
	return list
}

// withPaths adds the patterns of paths that were seen. nil stands for every path. Paths that no pattern can describe, or that are too long,
// are left out: otherwise one odd request would open all others.
func withPaths(all map[string]bool, s Seen) map[string]bool {
	if all == nil {
		return nil
	}
	for _, path := range s.Paths {
		pattern, shortened := patternOf(path, s.Shape)
		switch {
		case s.More && !shortened:
			return nil
		case len(pattern) <= maxPath && (shortened || !strings.HasSuffix(path, "*")):
			all[pattern] = true
		}
	}
	if len(s.Paths) == 0 || len(all) > maxPaths {
		return nil
	}
	return all
}

// patternOf returns the pattern for a path with a shape: the path, shortened before the first segment that the shape has replaced. Braces and
// dots in the path itself are part of it.
func patternOf(path, shape string) (pattern string, shortened bool) {
	if path == shape || shape == "" {
		return path, false
	}
	same := 0
	for same < min(len(path), len(shape)) && path[same] == shape[same] {
		same++
	}
	return path[:strings.LastIndexByte(path[:same], '/')+1] + "*", true
}

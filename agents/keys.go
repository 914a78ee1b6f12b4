package agents

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/llm"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/rule/meter"
)

// KeyPointer is the JSON pointer of the key of the model in requests that create a box.
const KeyPointer = "/agent_api_key"

// Keys collects the header rules that carry the keys of an agent: of its model and of its MCP servers. Mistakes are added to a
// list, without any value.
type Keys struct {
	problems *problem.List
	fields   map[string]map[string]string // pattern → header field → value
	at       map[string]string            // pattern → pointer to the first key for it
	meters   map[string]Target            // pattern → how its requests are metered
	own      llm.Meters
}

// NewKeys returns an empty collection whose mistakes are added to p. own are the operator's meters.
func NewKeys(p *problem.List, own llm.Meters) *Keys {
	return &Keys{p, map[string]map[string]string{}, map[string]string{}, map[string]Target{}, own}
}

// SetModel adds the key of the model at a pointer; its requests are metered if the host is a vendor's own, or one of the
// operator's meters. Keys of [IsHostedKey] are
// ignored.
func (k *Keys) SetModel(at string, h api.Hosted, key string) {
	if key == "" || IsHostedKey(key) {
		return
	}
	target, ok := TargetOf(h)
	if !ok {
		k.problems.Add("/model", "its provider is not known to %s: write it as provider/model with one of %v, or give agent_base_url", h.Agent, slices.Sorted(maps.Keys(providers)))
		return
	}
	if vendor, others, named := k.own.At(target.Host); named {
		target.Meter, target.others = vendor, others
	}
	for field, prefix := range target.Fields {
		if pattern := k.set(at, target.Host, field, prefix+key); pattern != "" && target.Meter != "" {
			k.meters[pattern] = target
		}
	}
}

// Set adds the value of one header field in requests to a host; at is the pointer of the value.
func (k *Keys) Set(at, host, field, value string) { k.set(at, host, field, value) }

// set returns the pattern of the rule, or "" after a mistake.
func (k *Keys) set(at, host, field, value string) (pattern string) {
	rules, err := policy.ParseHeaders(map[string]map[string]string{host: {field: value}})
	if invalid, ok := errors.AsType[*document.InvalidError](err); ok {
		k.problems.Add(at, "cannot be set in requests to %q: %s", problem.Clip(host), invalid.Problems[0].Message)
		return ""
	}
	if err != nil {
		k.problems.Add(at, "cannot be set in requests to %q", problem.Clip(host))
		return ""
	}
	pattern, field = rules[0].Pattern.String(), http.CanonicalHeaderKey(field)
	fields := k.fields[pattern]
	if fields == nil {
		fields = map[string]string{}
		k.fields[pattern], k.at[pattern] = fields, at
	}
	if before, twice := fields[field]; twice && before != value {
		k.problems.Add(at, "%s would have two values in requests to %s", field, pattern)
		return ""
	}
	fields[field] = value
	return pattern
}

// withPort returns the pattern of a rule with its port, for comparisons.
func withPort(r policy.HeaderRule) string { return r.Pattern.WithDefaultPort(name.HTTPSPort).String() }

// meteredRule returns the document of a rule whose requests are metered: an alternative for each API of the host.
func meteredRule(fields map[string]string, t Target) any {
	all := map[string]any{"headers": fields, meter.Key: t.Meter}
	if len(t.others) == 0 {
		return all
	}
	var alternatives []any
	for _, o := range t.others {
		alternatives = append(alternatives, map[string]any{"match": map[string]any{"path": map[string]any{"prefix": o.Prefix}}, "headers": fields, meter.Key: o.Vendor})
	}
	return append(alternatives, all)
}

// Rules returns the rules. A host that has a rule among others is a mistake, since only one of the rules could apply.
func (k *Keys) Rules(others []policy.HeaderRule) []policy.HeaderRule {
	doc := map[string]any{}
	for pattern, fields := range k.fields {
		doc[pattern] = fields
		if target, metered := k.meters[pattern]; metered {
			doc[pattern] = meteredRule(fields, target)
		}
	}
	text, err := json.Marshal(doc)
	var rules []policy.HeaderRule
	if err == nil { // texts always encode
		rules, err = policy.ParseHeaderRules(text, nil)
	}
	if err != nil { // each was parsed alone
		k.problems.Add("", "the keys of the agent make no header rules")
		return nil
	}
	for _, rule := range rules {
		if slices.ContainsFunc(others, func(r policy.HeaderRule) bool { return withPort(r) == withPort(rule) }) {
			k.problems.Add(k.at[rule.Pattern.String()], "there is a header rule for %s as well; give its headers in one place", rule.Pattern)
		}
	}
	return rules
}

package pages

import (
	"encoding/json"
	"maps"
	"slices"

	"boxgate/api"
	"boxgate/policy/match"
	"boxgate/rule/kinds"
)

// headerRules is a set of header rules, as the API shows it: without values.
type headerRules struct {
	Rules    map[string]map[string]json.RawMessage
	Version  uint64
	Warnings []problem
}

// headerRule is a rule of one host pattern, or one of its alternatives.
type headerRule struct {
	Pattern string
	Match   string // the requests that it is for; "" for all
	Deny    bool
	Scrub   bool
	Effects []string // each in a line: the names of headers, and of secrets of the configuration
}

// list returns the rules by pattern.
func (h headerRules) list() (rules []headerRule) {
	for _, pattern := range slices.Sorted(maps.Keys(h.Rules)) {
		entries := []map[string]json.RawMessage{h.Rules[pattern]}
		var alternatives []map[string]json.RawMessage
		if json.Unmarshal(entries[0]["alternatives"], &alternatives) == nil && len(alternatives) > 0 {
			entries = alternatives
		}
		for _, members := range entries {
			rules = append(rules, ruleOf(pattern, members))
		}
	}
	return rules
}

// ruleOf returns a rule from its members.
func ruleOf(pattern string, members map[string]json.RawMessage) headerRule {
	r := headerRule{Pattern: pattern, Deny: string(members["deny"]) == "true", Scrub: string(members["scrub"]) == "true"}
	var m match.Match
	if json.Unmarshal(members["match"], &m) == nil && !m.IsZero() {
		r.Match = m.String()
	}
	for _, kind := range kinds.Shown() {
		r.Effects = append(r.Effects, kinds.Lines(kind, members)...)
	}
	return r
}

func ruleRoutes() []Route {
	return []Route{
		{"GET " + Prefix + "rules", globalRulesPage},
		{"GET " + Prefix + "boxes/{id}/headers", boxRulesPage},
	}
}

// ruleSet is a set of rules on a page.
type ruleSet struct {
	Rules    []headerRule
	Version  uint64
	Warnings []problem
	Command  string // that adds a rule
}

func setOf(h headerRules, command string) *ruleSet {
	return &ruleSet{h.list(), h.Version, h.Warnings, command}
}

// rulesData is the data of the pages of header rules.
type rulesData struct {
	Box    string
	Own    *ruleSet // rules of the box; nil on the page of the rules of all boxes
	Global *ruleSet // rules of all boxes; nil if the role may not see them
	Fleet  *ruleSet // rules of all boxes of the fleet; nil without a fleet, or if the role may not see them
}

const globalHeaders = "/v2/box/settings/attach-headers"

// fleetRules returns the rules of the fleet, or nil.
func fleetRules(v *Visit) (*ruleSet, error) {
	var rules headerRules
	switch err := v.optional(globalHeaders+"?fleet=true", &rules); {
	case isMissing(err):
		return nil, nil
	case err != nil || rules.Rules == nil:
		return nil, err
	}
	return setOf(rules, "gateway headers set --fleet api.example.com --secret Authorization=NAME"), nil
}

func globalRulesPage(v *Visit) (View, error) {
	var rules headerRules
	if err := v.get(globalHeaders, &rules); err != nil {
		return View{}, err
	}
	data := rulesData{Global: setOf(rules, "gateway headers set api.example.com --secret Authorization=NAME")}
	var err error
	if data.Fleet, err = fleetRules(v); err != nil {
		return View{}, err
	}
	return View{Name: "rules", Title: "Header rules", Section: "Header rules", Data: data}, nil
}

func boxRulesPage(v *Visit) (View, error) {
	id := v.R.PathValue("id")
	var own, global headerRules
	if err := v.get(api.BoxPath(id, "config", "attach-headers"), &own); err != nil {
		return View{}, err
	}
	data := rulesData{Box: id, Own: setOf(own, "gateway headers set --box "+id+" api.example.com --secret Authorization=NAME")}
	if err := v.optional(globalHeaders, &global); err != nil {
		return View{}, err
	}
	if global.Rules != nil {
		data.Global = setOf(global, "")
	}
	var err error
	if data.Fleet, err = fleetRules(v); err != nil {
		return View{}, err
	}
	return View{Name: "rules", Title: "Header rules", Section: "Boxes", Box: id, Data: data}, nil
}

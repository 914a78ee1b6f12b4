package amend

import (
	"encoding/json"
	"slices"

	"boxgate/policy"
)

// Difference is an entry that only one of two policies has.
type Difference struct {
	Added bool   `json:"added"` // only the second has it
	Field string `json:"field"` // "mode", "allowed_domains", …
	Entry string `json:"entry"` // as in the policy; rules as JSON
}

// String returns the difference as a line of a diff.
func (d Difference) String() string {
	sign := "-"
	if d.Added {
		sign = "+"
	}
	return sign + " " + d.Field + ": " + d.Entry
}

// Diff returns the entries that only one of two policies has. As the order of rules matters, it returns all rules from the first to
// the last difference.
func Diff(before, after policy.Spec) []Difference {
	var all []Difference
	for _, f := range []struct {
		name          string
		before, after []string
	}{
		{"mode", one(string(before.Mode)), one(string(after.Mode))},
		{"precedence", one(string(before.Precedence)), one(string(after.Precedence))},
		{"dns", one(string(before.DNS)), one(string(after.DNS))},
		{"denied_names", one(string(before.DeniedNames)), one(string(after.DeniedNames))},
		{"allowed_domains", before.AllowedDomains, after.AllowedDomains},
		{"denied_domains", before.DeniedDomains, after.DeniedDomains},
		{"allowed_cidrs", before.AllowedCIDRs, after.AllowedCIDRs},
		{"denied_cidrs", before.DeniedCIDRs, after.DeniedCIDRs},
		{"upstream_proxy", upstream(before), upstream(after)},
	} {
		all = append(all, missing(f.name, f.before, f.after, false)...)
		all = append(all, missing(f.name, f.after, f.before, true)...)
	}
	all = append(all, ordered("rules", encoded(before.Rules), encoded(after.Rules))...)
	return append(all, ordered("repos", encoded(before.Repos), encoded(after.Repos))...)
}

// one returns a list of one text; nil for "".
func one(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

// upstream returns the upstream proxy of a policy as JSON, nil without one.
func upstream(s policy.Spec) []string {
	if s.UpstreamProxy == nil {
		return nil
	}
	return encoded([]policy.UpstreamSpec{*s.UpstreamProxy})
}

// missing returns the entries that another list lacks.
func missing(field string, list, from []string, added bool) []Difference {
	var out []Difference
	for _, s := range list {
		if !slices.Contains(from, s) {
			out = append(out, Difference{added, field, s})
		}
	}
	return out
}

// ordered compares lists whose order matters.
func ordered(field string, before, after []string) []Difference {
	for len(before) > 0 && len(after) > 0 && before[0] == after[0] {
		before, after = before[1:], after[1:]
	}
	for len(before) > 0 && len(after) > 0 && before[len(before)-1] == after[len(after)-1] {
		before, after = before[:len(before)-1], after[:len(after)-1]
	}
	return append(missing(field, before, nil, false), missing(field, after, nil, true)...)
}

// encoded returns each element as JSON.
func encoded[T any](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		data, err := json.Marshal(v)
		if err != nil { // these types can be encoded
			data = []byte(err.Error())
		}
		out[i] = string(data)
	}
	return out
}

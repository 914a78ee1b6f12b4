package spec

import (
	"encoding/json"
	"reflect"

	"boxgate/policy/match"
	"boxgate/rule/kinds"
)

// Headers is the JSON of header rules, host pattern to a compact or a full entry, which policy.ParseHeaderRules reads.
type Headers struct{ json.RawMessage }

// Forms describes the rules.
func (Headers) Forms() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[map[string]headerEntries]()}
}

// headerEntries is the value of one host pattern.
type headerEntries struct{}

// Forms lists an entry and a list of alternatives.
func (headerEntries) Forms() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[headerEntry](), reflect.TypeFor[[]headerEntry]()}
}

// headerEntry is one entry of a host pattern.
type headerEntry struct{}

// Forms lists the JSON forms of an entry: the compact one (header name to value), the full one, and one for each kind of login.
func (headerEntry) Forms() []reflect.Type {
	forms := []reflect.Type{reflect.TypeFor[map[string]string](), reflect.TypeFor[headerEntryBody]()}
	for _, kind := range kinds.Logins {
		forms = append(forms, kind.Entry())
	}
	return forms
}

// headerEntryBody describes the full form of an entry.
type headerEntryBody struct {
	Match *match.Match `json:"match,omitempty" doc:"the requests that the entry is for; absent: every one. Of several entries the first that matches applies alone"`
	Deny  bool         `json:"deny,omitempty" doc:"refuse the requests with 403; nothing but match may stand beside it"`
	Scrub *bool        `json:"scrub,omitempty" doc:"mask the rule's secrets in responses; true by default for rules with placeholders or a query"`
}

// Members returns the members of the kinds of rules.
func (headerEntryBody) Members() []reflect.StructField { return kinds.Members() }

package spec

import (
	"encoding/json"
	"reflect"

	"boxgate/api/problem"
	"boxgate/policy"
	"boxgate/policy/dialect"
	"boxgate/policy/match"
	"boxgate/rule/kinds"
)

// Policy is the JSON of a policy in any dialect, which [ParsePolicy] reads.
type Policy struct{ json.RawMessage }

// Forms describes the dialect of this API alone, and the reference to a named policy.
func (Policy) Forms() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[policyBody](), reflect.TypeFor[policyReference]()}
}

// policyReference is the named policy that a box follows.
type policyReference struct {
	Named   string       `json:"named" doc:"of a box: the named policy that it follows" example:"web"`
	Version uint64       `json:"version,omitempty" doc:"as in a policy"`
	Leases  []LeaseEntry `json:"leases,omitempty" doc:"as in a policy"`
}

// policyBody describes a policy in the dialect of this API; dialect.ParseSpec reads it.
type policyBody struct {
	policy.Spec
	Version uint64       `json:"version,omitempty" doc:"if given, the version that must be in force, as with If-Match"`
	Leases  []LeaseEntry `json:"leases,omitempty" doc:"on a box that has one: the temporary entries that go on; absent: those that deny"`
}

// LeaseEntry identifies a temporary entry of a policy. Requests may include the other fields of answers.
type LeaseEntry struct {
	Action    string `json:"action" enum:"allow deny audit"`
	Entry     string `json:"entry" doc:"a domain or CIDR as in a policy; empty with audit" example:"api.example.com:443"`
	StartedAt int64  `json:"started_at,omitempty"`
	ExpiresAt int64  `json:"expires_at,omitempty"`
	ExpiresIn int64  `json:"expires_in,omitempty"`
	Idle      string `json:"idle,omitempty"`
}

// GivenPolicy is a policy in a request: a document, or the name of a policy.
type GivenPolicy struct {
	Spec    policy.Spec         // not valid if Named is set
	Headers []policy.HeaderRule // only with Spec
	// SetsHeaders reports whether the document sets header rules, perhaps none: see [dialect.SetsHeaders].
	SetsHeaders bool
	Named       string // the named policy to follow; "": none
}

// ParsePolicy reads a policy in the dialect of this API, which always has a mode, or in a dialect that [dialect.Parse] translates,
// which may include header rules; or the name of a policy: {"named": NAME} without other members.
func ParsePolicy(data []byte) (given GivenPolicy, err error) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(data, &fields) != nil || fields["named"] == nil {
		given.Spec, given.Headers, err = dialect.Parse(data)
		given.SetsHeaders = err == nil && (len(given.Headers) > 0 || dialect.SetsHeaders(data))
		return given, err
	}
	if len(fields) > 1 {
		return given, problem.Invalid("/named", "stands alone: a box has the named policy as it is. For a policy of its own, leave named out")
	}
	if json.Unmarshal(fields["named"], &given.Named) != nil || given.Named == "" {
		return given, problem.Invalid("/named", "must be the name of a policy")
	}
	return given, nil
}

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

package spec

import (
	"encoding/json"
	"reflect"

	"boxgate/api/problem"
	"boxgate/policy"
	"boxgate/policy/dialect"
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
	Action    string `json:"action" enum:"allow deny"`
	Entry     string `json:"entry" doc:"a domain or CIDR as in a policy" example:"api.example.com:443"`
	StartedAt int64  `json:"started_at,omitempty"`
	ExpiresAt int64  `json:"expires_at,omitempty"`
	ExpiresIn int64  `json:"expires_in,omitempty"`
	Idle      string `json:"idle,omitempty"`
}

// GivenPolicy is a policy in a request: a document, or the name of a policy.
type GivenPolicy struct {
	Spec    policy.Spec         // not valid if Named is set
	Headers []policy.HeaderRule // only with Spec
	Named   string              // the named policy to follow; "": none
}

// ParsePolicy reads a policy in the dialect of this API, which always has a mode, or in a dialect that [dialect.Parse] translates,
// which may include header rules; or the name of a policy: {"named": NAME} without other members.
func ParsePolicy(data []byte) (given GivenPolicy, err error) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(data, &fields) != nil || fields["named"] == nil {
		given.Spec, given.Headers, err = dialect.Parse(data)
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

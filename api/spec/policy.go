package spec

import (
	"encoding/json"
	"reflect"

	"boxgate/policy"
)

// Policy is the JSON of a policy in any dialect, which [ParsePolicy] reads.
type Policy struct{ json.RawMessage }

// Forms describes the dialect of this API alone.
func (Policy) Forms() []reflect.Type { return []reflect.Type{reflect.TypeFor[policyBody]()} }

// policyBody describes a policy in the dialect of this API; policy.ParseSpec reads it.
type policyBody struct {
	policy.Spec
	Version uint64       `json:"version,omitempty" doc:"if given, the version that must be in force, as with If-Match"`
	Leases  []LeaseEntry `json:"leases,omitempty" doc:"on a box that has one: the temporary entries that go on; absent: those that deny"`
}

// LeaseEntry names a temporary entry of a policy. What an answer says of it besides may be sent back.
type LeaseEntry struct {
	Action    string `json:"action" enum:"allow deny"`
	Entry     string `json:"entry" doc:"a domain or CIDR as in a policy" example:"api.example.com:443"`
	StartedAt int64  `json:"started_at,omitempty"`
	ExpiresAt int64  `json:"expires_at,omitempty"`
	ExpiresIn int64  `json:"expires_in,omitempty"`
	Idle      string `json:"idle,omitempty"`
}

// ParsePolicy reads a policy in the dialect of this API, which always has a mode, or in one of those that
// [policy.ParseNetworkPolicy] translates, which may include header rules.
func ParsePolicy(data []byte) (policy.Spec, []policy.HeaderRule, error) {
	return policy.ParseNetworkPolicy(data)
}

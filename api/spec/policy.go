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
	Version uint64 `json:"version,omitempty" doc:"if given, the version that must be in force, as with If-Match"`
}

// ParsePolicy reads a policy in the dialect of this API, which always has a mode, or in one of those that
// [policy.ParseNetworkPolicy] translates, which may include header rules.
func ParsePolicy(data []byte) (policy.Spec, []policy.HeaderRule, error) {
	return policy.ParseNetworkPolicy(data)
}

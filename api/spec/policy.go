package spec

import (
	"encoding/json"
	"reflect"

	"boxgate/policy"
)

// Policy is the JSON of a policy in either dialect, which [ParsePolicy] reads.
type Policy struct{ json.RawMessage }

// Forms describes the dialect of this API alone.
func (Policy) Forms() []reflect.Type { return []reflect.Type{reflect.TypeFor[policyBody]()} }

// policyBody describes a policy in the dialect of this API; policy.ParseSpec reads it.
type policyBody struct {
	policy.Spec
	Version uint64 `json:"version,omitempty" doc:"if given, the version that must be in force, as with If-Match"`
}

// ParsePolicy reads a policy in the dialect of this API, which always has a mode, or in that of Vercel Sandbox, which
// is a string or has allow or subnets, and may include header rules.
func ParsePolicy(data []byte) (policy.Spec, map[string]map[string]string, error) {
	var text string
	var fields map[string]json.RawMessage
	isText := json.Unmarshal(data, &text) == nil && string(data) != "null"
	if !isText && (json.Unmarshal(data, &fields) != nil || fields["mode"] != nil || fields["allow"] == nil && fields["subnets"] == nil) {
		spec, err := policy.ParseSpec(data)
		return spec, nil, err
	}
	return policy.ParseVercel(data)
}

package spec

import (
	"boxgate/api/problem"
	"boxgate/policy"
)

// Source reads the source addresses of a box. The error is about the field that the pointer names.
func Source(pointer string, list []string) (policy.Source, error) {
	s, err := policy.ParseSource(list)
	if err != nil {
		return policy.Source{}, problem.Invalid(pointer, "%v", err)
	}
	return s, nil
}

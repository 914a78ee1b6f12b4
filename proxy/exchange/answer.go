package exchange

import (
	"slices"

	"boxgate/internal/h1"
	"boxgate/policy"
)

// SetsLogin reports whether one of the headers that a rule sets is part of the login of a connection.
func SetsLogin(set []policy.Header) bool {
	return slices.ContainsFunc(set, func(h policy.Header) bool { return !h.Remove && h1.IsLogin(h.Name, h.Value.Reveal()) })
}

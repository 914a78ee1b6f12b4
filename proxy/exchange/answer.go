package exchange

import (
	"slices"

	"boxgate/internal/h1"
	"boxgate/rule"
)

// SetsLogin reports whether one of the headers that a rule sets is part of the login of a connection.
func SetsLogin(set []rule.Field) bool {
	return slices.ContainsFunc(set, func(f rule.Field) bool { return !f.Remove && h1.IsLogin(f.Name, f.Value.Reveal()) })
}

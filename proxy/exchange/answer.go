package exchange

import (
	"slices"

	"boxgate/relay/h1"
	"boxgate/rule"
)

// SetsLogin reports whether a header of the rule is part of a connection-based login (NTLM, Negotiate).
func SetsLogin(set []rule.Field) bool {
	return slices.ContainsFunc(set, func(f rule.Field) bool { return !f.Remove && h1.IsLogin(f.Name, f.Value.Reveal()) })
}

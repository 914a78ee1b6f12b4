// Package lenient is the kind of rules that read malformed responses of HTTP/1.1 leniently:
//
//	{"lenient": true}
//
// Package relay/h1 has the mistakes that are repaired (h1.Repairs). The box gets the response in the strict form, and the connection to the
// server is not reused.
package lenient

import (
	"encoding/json"
	"reflect"

	"boxgate/policy/document"
	"boxgate/rule"
)

// Key is the member of a rule's document.
const Key = "lenient"

// Kind reads rules with the member.
type Kind struct{}

// Key implements [rule.Kind].
func (Kind) Key() string { return Key }

// Doc implements [rule.Kind].
func (Kind) Doc() string {
	return "repair malformed responses of the server, over HTTP/1.1 and with a new connection for each request"
}

// Form implements [rule.Kind].
func (Kind) Form() reflect.Type { return reflect.TypeFor[bool]() }

// View implements [rule.Viewed].
func (Kind) View() (form reflect.Type, doc string) { return reflect.TypeFor[bool](), "" }

// Example implements [rule.Kind].
func (Kind) Example() string { return "true" }

// Flags implements [rule.Flagged].
func (Kind) Flags() []rule.Flag {
	return []rule.Flag{{Name: Key, Usage: "repair malformed responses of the server", Switch: true}}
}

// FromFlag implements [rule.Flagged].
func (Kind) FromFlag(any, rule.Argument) (any, error) { return true, nil }

// Line implements [rule.Kind].
func (Kind) Line(shown json.RawMessage) string {
	var on bool
	if json.Unmarshal(shown, &on) != nil || !on {
		return ""
	}
	return "(lenient responses)"
}

// Parse implements [rule.Kind].
func (Kind) Parse(at string, v document.Value, c *rule.Context) rule.Effect {
	if !c.Flag(at, v) {
		return nil
	}
	return effect{}
}

// effect reads responses leniently.
type effect struct{}

// Key implements [rule.Effect].
func (effect) Key() string { return Key }

// Document implements [rule.Effect].
func (effect) Document() any { return true }

// Show implements [rule.Effect].
func (effect) Show() any { return true }

// Equal implements [rule.Effect].
func (e effect) Equal(other rule.Effect) bool { return rule.Effect(e) == other }

// ReadsLeniently implements [rule.LenientReader].
func (effect) ReadsLeniently() {}

// Check implements [rule.Checker].
func (e effect) Check(at string, all []rule.Effect, ps *document.Problems) {
	rule.CheckServer(document.Pointer(at, e.Key()), all, ps)
}

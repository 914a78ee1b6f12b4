// Package legacytls has the kinds of rules that allow old cipher suites of TLS 1.2, towards the server or from clients in the box:
//
//	{"upstream_tls": "legacy", "client_tls": "legacy"}
//
// The suites are those of [crypto/tls.InsecureCipherSuites] with RSA key exchange, which has no forward secrecy, or CBC with SHA-256, which
// crypto/tls does not protect against timing attacks (Lucky Thirteen). RC4 and 3DES are not among them.
package legacytls

import (
	"encoding/json"
	"reflect"

	"boxgate/policy/document"
	"boxgate/rule"
)

// legacy is the only value of the members.
const legacy = "legacy"

// Kind reads one of the two members.
type Kind struct {
	key, doc  string
	flag, use string
	line      string // for `gateway headers list`
	effect    rule.Effect
}

// Upstream is the kind for the TLS of servers, and Clients for that of boxes.
var (
	Upstream = &Kind{
		key: "upstream_tls", doc: "legacy: also offer the server cipher suites with RSA key exchange or CBC with SHA-256 (TLS 1.2)",
		flag: "upstream-tls", use: "legacy: also offer the server cipher suites with RSA key exchange or CBC with SHA-256",
		line: "(legacy TLS to the server)", effect: upstreamEffect{},
	}
	Clients = &Kind{
		key: "client_tls", doc: "legacy: also accept these cipher suites from clients in the box, if one alternative of the host has it",
		flag: "client-tls", use: "legacy: also accept these cipher suites from clients in the box",
		line: "(legacy TLS from clients)", effect: clientEffect{},
	}
)

// Key implements [rule.Kind].
func (k *Kind) Key() string { return k.key }

// Doc implements [rule.Kind].
func (k *Kind) Doc() string { return k.doc }

// Form implements [rule.Kind].
func (*Kind) Form() reflect.Type { return reflect.TypeFor[string]() }

// View implements [rule.Viewed].
func (*Kind) View() (form reflect.Type, doc string) { return reflect.TypeFor[string](), "" }

// Example implements [rule.Kind].
func (*Kind) Example() string { return `"legacy"` }

// Flags implements [rule.Flagged].
func (k *Kind) Flags() []rule.Flag { return []rule.Flag{{Name: k.flag, Usage: k.use}} }

// FromFlag implements [rule.Flagged].
func (*Kind) FromFlag(_ any, a rule.Argument) (any, error) { return a.Text, nil }

// Line implements [rule.Kind].
func (k *Kind) Line(shown json.RawMessage) string {
	var text string
	if json.Unmarshal(shown, &text) != nil || text != legacy {
		return ""
	}
	return k.line
}

// Parse implements [rule.Kind].
func (k *Kind) Parse(at string, v document.Value, c *rule.Context) rule.Effect {
	text := v.AsString(at, &c.Problems)
	switch {
	case v.Kind != document.Text:
		return nil
	case text != legacy:
		c.Add(at, `is not "legacy", the only value; leave it out for current cipher suites`)
		return nil
	}
	return k.effect
}

// upstreamEffect offers old suites to servers.
type upstreamEffect struct{}

// Key implements [rule.Effect].
func (upstreamEffect) Key() string { return Upstream.key }

// Document implements [rule.Effect].
func (upstreamEffect) Document() any { return legacy }

// Show implements [rule.Effect].
func (upstreamEffect) Show() any { return legacy }

// Equal implements [rule.Effect].
func (e upstreamEffect) Equal(other rule.Effect) bool { return rule.Effect(e) == other }

// OffersLegacySuites implements [rule.LegacyUpstream].
func (upstreamEffect) OffersLegacySuites() {}

// Check implements [rule.Checker].
func (e upstreamEffect) Check(at string, all []rule.Effect, ps *document.Problems) {
	rule.CheckServer(document.Pointer(at, e.Key()), all, ps)
}

// clientEffect accepts old suites from boxes.
type clientEffect struct{}

// Key implements [rule.Effect].
func (clientEffect) Key() string { return Clients.key }

// Document implements [rule.Effect].
func (clientEffect) Document() any { return legacy }

// Show implements [rule.Effect].
func (clientEffect) Show() any { return legacy }

// Equal implements [rule.Effect].
func (e clientEffect) Equal(other rule.Effect) bool { return rule.Effect(e) == other }

// AcceptsLegacySuites implements [rule.LegacyClients].
func (clientEffect) AcceptsLegacySuites() {}

// Package rule is the interface between header rules and their effects on requests, responses and connections. Each capability of rules is a
// [Kind] in a folder below this one, with its document, its view, its effect and their tests. Package rule/kinds lists them.
//
// A kind reads its member of a rule's document and returns an [Effect]. The effect implements the interface of each stage at which it acts:
// the fields of [Request] and [Connection] are the stages. Everything else follows from the kind: the strict parser, the store, the API and
// its description, the conversion from and to other dialects, `gateway headers list`, the flags of `gateway headers set`, and whether a
// request that began under one rule may continue under another.
package rule

import (
	"encoding/json"
	"reflect"

	"boxgate/policy/document"
)

// Kind is a capability of header rules. Kinds are stateless and safe for concurrent use.
type Kind interface {
	// Key is the member of a rule's document that the kind reads. It must never change: stored rules contain it.
	Key() string
	// Doc describes the member in a sentence, and Form is a type with the same JSON. Both are for the description of the API.
	Doc() string
	Form() reflect.Type
	// Example is the JSON of a member, which the tests of all kinds use.
	Example() string
	// Parse reads the member v at the pointer at. A [Wide] kind finds its other members in the context, and v has no Kind if the entry lacks
	// the member of Key. Parse adds every mistake to the context's problems, without quoting secrets. It returns nil if the member is
	// empty. After a mistake it may return an effect, which is used for further checks only.
	Parse(at string, v document.Value, c *Context) Effect
	// Line returns the text for `gateway headers list` of an effect that [Effect.Show] marshals to this JSON; "" if the JSON is not valid.
	Line(shown json.RawMessage) string
}

// Viewed is implemented by kinds whose effects are shown in another form than they are written in.
type Viewed interface {
	// View returns a type with the JSON of [Effect.Show], and a sentence about it.
	View() (form reflect.Type, doc string)
}

// Flagged is implemented by kinds with flags of `gateway headers set HOST`.
type Flagged interface {
	Flags() []Flag
	// FromFlag adds one argument to the member made from the arguments so far, nil at first, and returns it as a value for encoding/json.
	// Arguments come in the order of Flags. The error is shown to the user and must not quote the text.
	FromFlag(member any, a Argument) (any, error)
}

// Flag is a flag of `gateway headers set HOST`.
type Flag struct {
	Name, Usage string
	// Names is the placeholder for the part before the equals sign, such as HEADER. Such a flag may be repeated. A flag without Names takes
	// one argument without an equals sign.
	Names    string
	Switch   bool // takes no argument; FromFlag is called if it is set
	Readable bool // the text may be @FILE or - (standard input), which are read
	Secret   bool // the text contains the name of a secret
}

// Argument is one use of a flag.
type Argument struct {
	Flag string // its name
	Name string // before the equals sign
	Text string
}

// Wide is implemented by kinds that read more than one member of a rule's document.
type Wide interface {
	// Members returns the members in addition to the one of Key.
	Members() []Member
}

// Member is a member of a [Wide] kind. Its form is the same in rules as written and as shown.
type Member struct {
	Key, Doc string
	Form     reflect.Type
	ViewDoc  string                             // Doc in rules as shown
	Line     func(shown json.RawMessage) string // as [Kind.Line]; nil: not printed
}

// AlwaysShown is implemented by kinds whose member is present in every rule that the API shows.
type AlwaysShown interface {
	// ShowNone returns the member for rules without an effect of the kind.
	ShowNone() any
}

// Variables is implemented by kinds whose line belongs in the column PLACEHOLDERS of `gateway headers list`.
type Variables interface {
	// ListsVariables marks the kind.
	ListsVariables()
}

// Effect is a kind with the parameters of one rule. Effects are immutable and safe for concurrent use.
type Effect interface {
	// Key returns the key of the kind.
	Key() string
	// Document returns the member that the kind would parse to this effect, as a value for encoding/json, with secrets in the clear. It is
	// nil if a [Wide] kind needs its other members only.
	Document() any
	// Show returns the effect without secrets, for answers of the API.
	Show() any
	// Equal reports whether a request that began under this effect may continue under another one of the same kind.
	Equal(other Effect) bool
}

// WideEffect is implemented by the effects of a [Wide] kind.
type WideEffect interface {
	// Members returns the members in addition to Document, by key. They contain no secrets and are shown as well.
	Members() map[string]any
}

// Sourced is implemented by effects that need secrets of the operator.
type Sourced interface {
	// Sources returns the names of the secrets.
	Sources() []string
}

// LineWithSecret returns the line of an effect whose value comes from a secret; "" is a literal.
func LineWithSecret(what, secret string) string {
	if secret == "" {
		return what
	}
	return what + " (" + secret + ")"
}

// ResponseHead is implemented by effects that change the heads of interim and final responses, and trailers.
type ResponseHead interface {
	// DropsResponseField reports whether fields of this name, in lower case, are not forwarded to the client.
	DropsResponseField(name string) bool
}

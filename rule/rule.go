// Package rule is the interface between header rules and what they can do to the requests of a host and their responses. Each thing that a
// rule can do is a [Kind] in a folder of its own below this one: its document, its view, its effect and their
// tests. Package rule/kinds lists them.
//
// A kind reads its member of a rule's document and returns an [Effect], which implements the interface of each stage at which it does something:
// those of [Request] for requests and their responses, and those of [Connection] for connections. Everything else follows from the kind: the
// strict parser, the store, the API and its description, the conversion from and to other dialects, `gateway headers list`, and whether a
// request that began under one rule may go on under another.
package rule

import (
	"encoding/json"
	"reflect"

	"boxgate/policy/document"
)

// Kind is something that a header rule can do. Kinds are stateless, and safe for concurrent use.
type Kind interface {
	// Key is the member of a rule's document that the kind reads. It is never changed: stores have it.
	Key() string
	// Doc describes the member in a sentence, and Form is a type whose JSON it has, for the description of the API.
	Doc() string
	Form() reflect.Type
	// Example is the JSON of a member. The tests of what all kinds share try it.
	Example() string
	// Parse reads the member, which is at a pointer. A [Wide] kind finds its other members in the context, and v has no Kind if the entry lacks
	// the member of Key. Parse adds every mistake to the context's problems, and quotes no secret in them. It returns nil if the
	// member is empty and changes nothing. After a mistake it may return an effect, which is used for further checks only.
	Parse(at string, v document.Value, c *Context) Effect
	// Line is what `gateway headers list` prints of an effect that is shown as this JSON; "" if it cannot be read.
	Line(shown json.RawMessage) string
}

// Viewed is implemented by kinds whose effects are shown in another form than that in which they are written.
type Viewed interface {
	// View is a type whose JSON effects are shown in, and a sentence about it.
	View() (form reflect.Type, doc string)
}

// Flagged is implemented by kinds whose member can be given by flags of `gateway headers set HOST`.
type Flagged interface {
	Flags() []Flag
	// FromFlag adds an argument to the member that earlier arguments make, which is nil at first, and returns the member as a value for
	// encoding/json. Arguments come in the order of Flags. The error is shown to the user, and quotes no text.
	FromFlag(member any, a Argument) (any, error)
}

// Flag is a flag of `gateway headers set HOST`.
type Flag struct {
	Name, Usage string
	// Names is what arguments name before an equals sign, such as HEADER. The flag can then be given several times. "" is a flag that is
	// given once, whose argument is a text alone.
	Names    string
	Readable bool // the text may be @FILE or - (standard input), for what is read there
	Secret   bool // the text has the name of a secret
}

// Argument is one use of a flag.
type Argument struct {
	Flag string // its name
	Name string // before the equals sign
	Text string
}

// Wide is implemented by kinds that read more than one member of a rule's document.
type Wide interface {
	// Members are those besides the one of Key.
	Members() []Member
}

// Member is one of the members of a kind.
type Member struct {
	Key, Doc string
	Form     reflect.Type
	ViewDoc  string // in the form in which rules are shown, whose type is the same
	// Line is like [Kind.Line]; nil if nothing is printed.
	Line func(shown json.RawMessage) string
}

// AlwaysShown is implemented by kinds whose member the API also shows of rules without an effect of the kind.
type AlwaysShown interface {
	// ShowNone returns the member of such a rule.
	ShowNone() any
}

// Variables is implemented by kinds of variables: their line stands in the column of placeholders of `gateway headers list`.
type Variables interface {
	// ListsVariables only marks the kind.
	ListsVariables()
}

// Effect is a kind with the parameters of one rule. Effects are immutable, and safe for concurrent use.
type Effect interface {
	// Key is that of the kind.
	Key() string
	// Document returns the member of the rule's document that the kind reads as this effect, as a value for encoding/json. It has secrets in the
	// clear. It is nil if only other members of a [Wide] kind are given.
	Document() any
	// Show is Document without secrets. The API answers it.
	Show() any
	// Equal reports whether a request that began under this effect may go on under another of the same kind.
	Equal(other Effect) bool
}

// WideEffect is implemented by the effects of a [Wide] kind.
type WideEffect interface {
	// Members returns the members besides the one of Key that are read as this effect. They have no secrets.
	Members() map[string]any
}

// Sourced is implemented by effects that need secrets of the operator, whatever for.
type Sourced interface {
	// Sources returns their names.
	Sources() []string
}

// LineWithSecret returns what `gateway headers list` prints of something that has its value of a secret; "" is a literal.
func LineWithSecret(what, secret string) string {
	if secret == "" {
		return what
	}
	return what + " (" + secret + ")"
}

// ResponseHead is implemented by effects that change the heads of responses: of interim ones, of the final one, and trailers.
type ResponseHead interface {
	// DropsResponseField reports whether the client is not sent a field of this name, which is in lower case.
	DropsResponseField(name string) bool
}

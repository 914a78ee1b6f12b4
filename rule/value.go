package rule

import (
	"context"
	"encoding/base64"
	"net/textproto"
	"reflect"
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// Value is a text that a rule sends or signs with: a literal, or a named secret of the operator. The zero Value is the empty literal.
type Value struct {
	Literal        name.Secret // empty when Source is set
	Source         string      // name of a secret in the gateway's configuration; "" for a literal
	Prefix, Suffix string      // written around the value of Source
	Basic          bool        // the value of Source is the password of basic authentication (RFC 7617), for User
	User           string
}

// Secrets returns values of the operator's secrets. Safe for concurrent use.
type Secrets interface {
	// Text returns the value of a secret, which is valid as a header value and not empty. The error does not quote it.
	Text(ctx context.Context, name string) (string, error)
}

// Equal reports whether two values have the same literal, or the same source and form.
func (v Value) Equal(o Value) bool {
	same := v.Literal.Equal(o.Literal)
	v.Literal, o.Literal = name.Secret{}, name.Secret{}
	return same && v == o
}

// Sources returns the name of the source, if there is one.
func (v Value) Sources() []string {
	if v.Source == "" {
		return nil
	}
	return []string{v.Source}
}

// Plain returns the JSON form of a value without prefix and suffix.
func (v Value) Plain() any {
	if v.Source != "" {
		return map[string]string{"secret": v.Source}
	}
	return v.Literal.Reveal()
}

// Document returns the JSON form that [Context.Value] reads as v.
func (v Value) Document() any {
	switch {
	case v.Basic:
		return map[string]string{"secret": v.Source, "encode": "basic", "user": v.User}
	case v.Source != "":
		return map[string]string{"secret": v.Source, "prefix": v.Prefix, "suffix": v.Suffix}
	}
	return v.Literal.Reveal()
}

// Bare returns the literal, or the value of the source without prefix and suffix.
func (v Value) Bare(ctx context.Context, s Secrets) (string, error) {
	if v.Source == "" {
		return v.Literal.Reveal(), nil
	}
	return s.Text(ctx, v.Source)
}

// Whole returns the text to send, given the literal or the value of the source.
func (v Value) Whole(bare string) string {
	switch {
	case v.Source == "":
		return bare
	case v.Basic:
		return BasicCredentials(v.User, bare)
	}
	return v.Prefix + bare + v.Suffix
}

// minScrub is the length of the shortest text that is masked in responses, in bytes.
const minScrub = 8

// WarnShort warns of a literal that is too short to be masked.
func (v Value) WarnShort(at string, ps *document.Problems) {
	if v.Source == "" && len(v.Literal.Reveal()) < minScrub {
		ps.Add(at, "is shorter than %d bytes: it is sent, but not masked in responses", minScrub)
	}
}

// BasicCredentials returns the value of Authorization for basic authentication (RFC 7617).
func BasicCredentials(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// Finder finds the secret that a value names, for a rule of a host pattern. The pattern may be zero. It returns how the rule refers to
// the secret, and why the rule may not use it, "" if it may.
type Finder func(n string, host name.Pattern) (source, flaw string)

// errUnknownSecret is the flaw of a name without a secret.
const errUnknownSecret = "there is no secret of this name in the gateway's configuration"

// Configured returns a Finder for the secrets of the configuration. known reports whether there is one of a name.
func Configured(known func(n string) bool) Finder {
	return func(n string, _ name.Pattern) (source, flaw string) {
		if !known(n) {
			flaw = errUnknownSecret
		}
		return n, flaw
	}
}

// Context is the input of [Kind.Parse] in addition to the member, and collects the mistakes.
type Context struct {
	document.Problems
	Entry document.Value // the whole entry that is read
	Find  Finder         // finds the secrets that values name; nil: accept any
	Host  name.Pattern   // of the rule; zero if it is not valid
}

// Member returns a member of the entry and its pointer. beside is the pointer of another member.
func (c *Context) Member(beside, key string) (at string, v document.Value, ok bool) {
	for i, k := range c.Entry.Keys {
		if k == key {
			return beside[:strings.LastIndexByte(beside, '/')+1] + key, c.Entry.Items[i], true
		}
	}
	return "", document.Value{}, false
}

// Value reads a literal or the name of a secret. Messages call the value n. affixes allows a prefix and suffix around the secret, or an encoding.
func (c *Context) Value(at, n string, v document.Value, affixes bool) (text Value) {
	text.Literal = name.NewSecret("")
	if v.Kind == document.Text {
		text.Literal = c.literal(at, n, v.Text)
		return text
	}
	known := map[string]func(string, document.Value){
		"value":  func(at string, v document.Value) { text.Literal = c.literal(at, n, v.AsString(at, &c.Problems)) },
		"secret": func(at string, v document.Value) { text.Source = c.Source(at, v) },
	}
	if affixes {
		known["prefix"] = func(at string, v document.Value) { text.Prefix = c.affix(at, v, false) }
		known["suffix"] = func(at string, v document.Value) { text.Suffix = c.affix(at, v, true) }
		known["encode"] = func(at string, v document.Value) { text.Basic = c.OneOf(at, v, "basic") == "basic" }
		known["user"] = func(at string, v document.Value) { text.User = c.user(at, v) }
	}
	v.Fields(at, `a string, {"secret": name} or {"value": string}`, &c.Problems, known)
	if v.Kind != document.Object {
		return text
	}
	switch literal, secret := v.Has("value"), v.Has("secret"); {
	case literal == secret:
		c.Add(at, `needs one of "secret" and "value"`)
	case literal && (v.Has("prefix") || v.Has("suffix")):
		c.Add(at, `"prefix" and "suffix" go around a secret; write them into the value`)
	case v.Has("user") && !v.Has("encode"):
		c.Add(document.Pointer(at, "user"), `is for "encode": "basic"`)
	case v.Has("encode") && (v.Has("prefix") || v.Has("suffix")):
		c.Add(at, `"encode" makes the whole value; leave "prefix" and "suffix" out`)
	case text.Basic && literal:
		text.Literal, text.Basic, text.User = name.NewSecret(BasicCredentials(text.User, text.Literal.Reveal())), false, ""
	}
	return text
}

// Filled is [Context.Value] for a value that may not be empty.
func (c *Context) Filled(at, n string, v document.Value, affixes bool) Value {
	text := c.Value(at, n, v, affixes)
	c.NotEmpty(at, n, text)
	return text
}

// NotEmpty refuses an empty literal. Messages call the value n.
func (c *Context) NotEmpty(at, n string, v Value) {
	if v.Source == "" && v.Literal.Reveal() == "" {
		c.Add(at, "the value of %s is empty", name.Quote(n))
	}
}

func (c *Context) user(at string, v document.Value) string {
	user := v.AsString(at, &c.Problems)
	if flaw := match.HeaderBytesFlaw(user); flaw != "" {
		c.Add(at, "%s", flaw)
	}
	if strings.Contains(user, ":") || len(user) > 256 {
		c.Add(at, "is not a user of basic authentication: at most 256 bytes without a colon")
	}
	return user
}

func (c *Context) literal(at, n, text string) name.Secret {
	if flaw := match.HeaderValueFlaw(text); flaw != "" {
		c.Add(at, "the value of %s %s", name.Quote(n), flaw)
	}
	return name.NewSecret(text)
}

// Source reads the name of a secret.
func (c *Context) Source(at string, v document.Value) string {
	n := v.AsString(at, &c.Problems)
	switch {
	case v.Kind != document.Text:
	case !name.IsSecretName(n) && !name.IsKeySecret(n):
		c.Add(at, "is not the name of a secret: letters, digits, '.', '_' and '-', at most 64") // perhaps the secret itself
	case c.Find != nil:
		source, flaw := c.Find(n, c.Host)
		if flaw != "" {
			c.Add(at, "%s", flaw)
		}
		return source
	}
	return n
}

func (c *Context) affix(at string, v document.Value, suffix bool) string {
	text := v.AsString(at, &c.Problems)
	if flaw := match.AffixFlaw(text, suffix); flaw != "" {
		c.Add(at, "%s", flaw)
	}
	return text
}

// OneOf reads a string that is one of the known ones.
func (c *Context) OneOf(at string, v document.Value, known ...string) string {
	if text := v.AsString(at, &c.Problems); !slices.Contains(known, text) {
		c.Add(at, "is not one of %s", strings.Join(known, ", "))
	}
	return v.Text
}

// Required adds a problem for each missing key of an object.
func (c *Context) Required(at string, v document.Value, keys ...string) {
	if v.Kind != document.Object {
		return
	}
	for _, key := range keys {
		if !v.Has(key) {
			c.Add(document.Pointer(at, key), "is missing")
		}
	}
}

// HeaderName reads the name of a header that may be set, in canonical form.
func (c *Context) HeaderName(at string, v document.Value) string {
	n := v.AsString(at, &c.Problems)
	if flaw := match.HeaderFlaw(n); v.Kind == document.Text && flaw != "" {
		c.Add(at, "%s %s", name.Quote(name.Shown(n, name.IsToken)), flaw)
	}
	return textproto.CanonicalMIMEHeaderKey(n)
}

// Flag reads true or false.
func (c *Context) Flag(at string, v document.Value) bool {
	if v.Kind != document.Bool {
		c.Add(at, "is %s; want true or false", v.Kind)
	}
	return v.Truth
}

// NamedView is the view of a value with a name, such as a header field.
type NamedView struct {
	Name   string `json:"name"`
	Secret string `json:"secret,omitempty" doc:"the secret of the gateway's configuration that it comes from; absent for a literal"`
}

// SchemaName is the name of the view in the description of the API.
func (NamedView) SchemaName() string { return "headerView" }

// ValueForm describes the JSON that [Context.Value] reads, for the description of the API.
type ValueForm struct{}

// Forms lists the literal and the value of a secret.
func (ValueForm) Forms() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[string](), reflect.TypeFor[valueBody]()}
}

// valueBody describes a value that is written as an object.
type valueBody struct {
	Secret string `json:"secret,omitempty" doc:"name of a secret in the gateway's configuration"`
	Prefix string `json:"prefix,omitempty" doc:"before the secret's value"`
	Suffix string `json:"suffix,omitempty" doc:"after the secret's value"`
	Encode string `json:"encode,omitempty" doc:"in headers: basic, for the password of basic authentication"`
	User   string `json:"user,omitempty" doc:"of basic authentication"`
	Value  string `json:"value,omitempty" doc:"a literal, instead of secret; a string instead of the object is one, too"`
}

// SchemaName is the name of the form in the description of the API.
func (valueBody) SchemaName() string { return "headerValueBody" }

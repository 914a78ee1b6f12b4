// Package placeholder is the kind of rules with placeholders, environment variables of a box with tokens instead of secrets:
//
//	{"placeholders": {"OPENAI_API_KEY": {"secret": "openai"}}, "places": ["header", "json"]}
//
// The package finds tokens in requests and replaces them by values. Every part of a request is searched. Tokens are replaced in header values
// and in the places of the rule, and refused elsewhere.
package placeholder

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/rule"
)

// Key and PlacesKey are the members of a rule's document.
const (
	Key       = "placeholders"
	PlacesKey = "places"
)

// maxPlaceholders is the largest number of placeholders of a rule.
const maxPlaceholders = 64

// Kind reads rules with placeholders.
type Kind struct{}

// Key implements [rule.Kind].
func (Kind) Key() string { return Key }

// Doc implements [rule.Kind].
func (Kind) Doc() string {
	return "environment variable to the value that the gateway replaces its content with; no prefix or suffix"
}

// Form implements [rule.Kind].
func (Kind) Form() reflect.Type { return reflect.TypeFor[map[string]rule.ValueForm]() }

// Members implements [rule.Wide].
func (Kind) Members() []rule.Member {
	return []rule.Member{{Key: PlacesKey, Form: reflect.TypeFor[[]string](),
		Doc:     "where placeholders are replaced: header, which is always one, query, form, json, websocket",
		ViewDoc: "where placeholders are replaced; absent: in header values alone"}}
}

// placeholderView is a placeholder as shown.
type placeholderView struct {
	Variable string `json:"variable"`
	Secret   string `json:"secret,omitempty" doc:"as for a header"`
}

// View implements [rule.Viewed].
func (Kind) View() (form reflect.Type, doc string) { return reflect.TypeFor[[]placeholderView](), "" }

// Example implements [rule.Kind].
func (Kind) Example() string { return `{"API_KEY": "sk-key-1", "OTHER": {"value": "sk-key-2"}}` }

// Flags implements [rule.Flagged].
func (Kind) Flags() []rule.Flag {
	return []rule.Flag{{Name: "placeholder", Usage: "VARIABLE=SECRET: the box sees a token, the host gets the secret", Names: "VARIABLE", Secret: true}}
}

// FromFlag implements [rule.Flagged].
func (Kind) FromFlag(member any, a rule.Argument) (any, error) {
	list, ok := member.(map[string]any)
	if !ok {
		list = map[string]any{}
	}
	list[a.Name] = map[string]string{"secret": a.Text}
	return list, nil
}

// ListsVariables implements [rule.Variables].
func (Kind) ListsVariables() {}

// Line implements [rule.Kind].
func (Kind) Line(shown json.RawMessage) string {
	var list []placeholderView
	if json.Unmarshal(shown, &list) != nil {
		return ""
	}
	lines := make([]string, len(list))
	for i, v := range list {
		lines[i] = rule.LineWithSecret(v.Variable, v.Secret)
	}
	return strings.Join(lines, ", ")
}

// Parse implements [rule.Kind].
func (Kind) Parse(at string, v document.Value, c *rule.Context) rule.Effect {
	before, e := len(c.List), &effect{}
	if v.Kind != "" {
		e.list = parseList(at, v, c)
	}
	if at, v, ok := c.Member(at, PlacesKey); ok {
		if e.places = parsePlaces(at, v, c); e.places != 0 && len(e.list) == 0 {
			c.Add(at, "is for placeholders, and there are none")
		}
	}
	if len(c.List) > before || len(e.list) == 0 {
		return nil
	}
	return e
}

func parseList(at string, v document.Value, c *rule.Context) []rule.Placeholder {
	if v.Kind != document.Object {
		c.Add(at, "is %s; want an object of variables and values", v.Kind)
		return nil
	}
	if len(v.Keys) > maxPlaceholders {
		c.Add(at, "there are %d placeholders; the limit for one host is %d", len(v.Keys), maxPlaceholders)
		return nil
	}
	list := make([]rule.Placeholder, 0, len(v.Keys))
	for i, n := range v.Keys {
		shown := name.Shown(n, name.IsWordByte)
		at := document.Pointer(at, shown)
		if flaw := variableFlaw(n); flaw != "" {
			c.Add(at, "%s %s", name.Quote(shown), flaw)
		}
		list = append(list, rule.Placeholder{Variable: n, Value: c.Filled(at, shown, v.Items[i], false)})
	}
	slices.SortFunc(list, func(a, b rule.Placeholder) int { return cmp.Compare(a.Variable, b.Variable) })
	return list
}

func parsePlaces(at string, v document.Value, c *rule.Context) rule.Places {
	names, all := v.AsStrings(at, &c.Problems), rule.PlaceNames()
	for i, name := range names {
		if !slices.Contains(all, name) {
			c.Add(document.Element(at, i), "is not one of %s", strings.Join(all, ", "))
		}
	}
	if v.Kind == document.List && !slices.Contains(names, all[0]) {
		c.Add(at, `lacks "header": header values are always a place`)
	}
	places, _ := rule.PlacesOf(names)
	return places
}

// takenVariables have a meaning to all programs of a box: a placeholder of this name would break them.
var takenVariables = map[string]bool{
	"PATH": true, "HOME": true, "USER": true, "LOGNAME": true, "SHELL": true, "PWD": true, "LANG": true, "TERM": true,
	"IFS": true, "TMPDIR": true, "LD_PRELOAD": true, "LD_LIBRARY_PATH": true, "SSL_CERT_FILE": true,
	"CURL_CA_BUNDLE": true, "REQUESTS_CA_BUNDLE": true, "NODE_EXTRA_CA_CERTS": true, "NODE_OPTIONS": true,
	"HTTP_PROXY": true, "HTTPS_PROXY": true, "ALL_PROXY": true, "NO_PROXY": true,
}

// variableFlaw returns a sentence whose subject is the name of a variable, or "" if the name is valid.
func variableFlaw(n string) string {
	if n == "" || len(n) > 128 || '0' <= n[0] && n[0] <= '9' {
		return "is not a variable name: 1 to 128 letters, digits and '_', not beginning with a digit"
	}
	for i := range len(n) {
		if !name.IsWordByte(n[i]) {
			return "is not a variable name: 1 to 128 letters, digits and '_', not beginning with a digit"
		}
	}
	if takenVariables[strings.ToUpper(n)] {
		return "has a meaning to programs; choose another variable"
	}
	return ""
}

// effect replaces placeholders.
type effect struct {
	list   []rule.Placeholder // sorted by variable
	places rule.Places        // in addition to header values
}

// Key implements [rule.Effect].
func (*effect) Key() string { return Key }

// Document implements [rule.Effect]. Tokens are not part of it.
func (e *effect) Document() any {
	out := map[string]any{}
	for _, p := range e.list {
		out[p.Variable] = p.Plain()
	}
	return out
}

// Members implements [rule.WideEffect].
func (e *effect) Members() map[string]any {
	if e.places == 0 {
		return nil
	}
	return map[string]any{PlacesKey: e.places.Names()}
}

// Show implements [rule.Effect].
func (e *effect) Show() any {
	list := make([]placeholderView, len(e.list))
	for i, p := range e.list {
		list[i] = placeholderView{p.Variable, p.Source}
	}
	return list
}

// Equal implements [rule.Effect].
func (e *effect) Equal(other rule.Effect) bool {
	o, ok := other.(*effect)
	return ok && e.places == o.places && slices.EqualFunc(e.list, o.list, rule.Placeholder.Equal)
}

// Sources implements [rule.Sourced].
func (e *effect) Sources() (names []string) {
	for _, p := range e.list {
		names = append(names, p.Value.Sources()...)
	}
	return names
}

// EachSent implements [rule.Sender].
func (e *effect) EachSent(visit func(literal name.Secret, source string)) {
	for _, p := range e.list {
		visit(p.Literal, p.Source)
	}
}

// SendsLater implements [rule.Sender].
func (e *effect) SendsLater() bool {
	return slices.ContainsFunc(e.list, func(p rule.Placeholder) bool { return p.Source != "" })
}

// ScrubsByDefault implements [rule.Sender]: a box that could read the value in a response would need no token.
func (*effect) ScrubsByDefault() bool { return true }

// Warn implements [rule.Warner].
func (e *effect) Warn(at string, scrubs bool, ps *document.Problems) {
	for _, p := range e.list {
		if scrubs {
			p.WarnShort(document.Pointer(document.Pointer(at, Key), p.Variable), ps)
		}
	}
}

// Placeholders implements [rule.Replacer].
func (e *effect) Placeholders() []rule.Placeholder { return e.list }

// Find implements [rule.Replacer].
func (e *effect) Find(token string) *rule.Placeholder {
	for i := range e.list {
		if e.list[i].Token == token && token != "" {
			return &e.list[i]
		}
	}
	return nil
}

// Places implements [rule.Replacer].
func (e *effect) Places() rule.Places { return e.places }

// WithTokens implements [rule.Replacer].
func (e *effect) WithTokens(key name.Secret) rule.Effect {
	list := slices.Clone(e.list)
	for i := range list {
		list[i].Token = NewToken(key, list[i].Variable)
	}
	return &effect{list, e.places}
}

// A token is tokenPrefix and 160 bits in lower-case base32. Boxes have it instead of a secret. It is recognised by its form, and its bytes need
// no escaping in URLs, JSON or shells.
const (
	tokenPrefix = "bxgph_"
	tokenBytes  = 20
	TokenLen    = len(tokenPrefix) + tokenBytes*8/5 // length of every token
)

const tokenAlphabet = "abcdefghijklmnopqrstuvwxyz234567"

var tokenEncoding = base32.NewEncoding(tokenAlphabet).WithPadding(base32.NoPadding)

// NewToken derives the token of a variable from the key of a box. It cannot be guessed without the key.
func NewToken(key name.Secret, variable string) string {
	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	mac.Write([]byte(variable))
	return tokenPrefix + tokenEncoding.EncodeToString(mac.Sum(nil)[:tokenBytes])
}

// FindToken returns the position of the first token of any box and variable in s; start is -1 if there is none.
func FindToken(s string) (start, end int) {
	for from := 0; ; {
		i := strings.Index(s[from:], tokenPrefix)
		if i < 0 {
			return -1, -1
		}
		from += i + len(tokenPrefix)
		if isTokenBody(s[from:]) {
			return from - len(tokenPrefix), from - len(tokenPrefix) + TokenLen
		}
	}
}

// FindTokenBytes is [FindToken] for bytes.
func FindTokenBytes(b []byte) (start, end int) {
	for from := 0; ; {
		i := bytes.Index(b[from:], []byte(tokenPrefix))
		if i < 0 {
			return -1, -1
		}
		from += i + len(tokenPrefix)
		if isTokenBody(b[from:]) {
			return from - len(tokenPrefix), from - len(tokenPrefix) + TokenLen
		}
	}
}

func isTokenBody[S []byte | string](s S) bool {
	const n = TokenLen - len(tokenPrefix)
	if len(s) < n {
		return false
	}
	for i := range n {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return true
}

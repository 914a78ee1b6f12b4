// Package query is the kind of rules that set parameters in the query of requests, replacing the box's own:
//
//	{"query": {"key": {"secret": "maps"}, "lang": "en"}}
package query

import (
	"context"
	"encoding/json"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
)

// Key is the member of a rule's document.
const Key = "query"

// maxParameters is the largest number of parameters of a rule.
const maxParameters = 16

// Kind reads rules that set parameters.
type Kind struct{}

// Key implements [rule.Kind].
func (Kind) Key() string { return Key }

// Doc implements [rule.Kind].
func (Kind) Doc() string {
	return "parameter to the value that it has in the query; any that the box sends is removed"
}

// Form implements [rule.Kind].
func (Kind) Form() reflect.Type { return reflect.TypeFor[map[string]rule.ValueForm]() }

// View implements [rule.Viewed].
func (Kind) View() (form reflect.Type, doc string) {
	return reflect.TypeFor[[]rule.NamedView](), "parameters that are set in the query"
}

// Example implements [rule.Kind].
func (Kind) Example() string { return `{"key": "sk-maps", "lang": {"value": "sk-lang"}}` }

// Line implements [rule.Kind].
func (Kind) Line(shown json.RawMessage) string {
	var list []rule.NamedView
	if json.Unmarshal(shown, &list) != nil {
		return ""
	}
	lines := make([]string, len(list))
	for i, v := range list {
		lines[i] = rule.LineWithSecret("?"+v.Name, v.Secret)
	}
	return strings.Join(lines, ", ")
}

// Parse implements [rule.Kind].
func (Kind) Parse(at string, v document.Value, c *rule.Context) rule.Effect {
	before := len(c.List)
	if v.Kind != document.Object {
		c.Add(at, "is %s; want an object of parameter names and values", v.Kind)
		return nil
	}
	if len(v.Keys) > maxParameters {
		c.Add(at, "there are %d parameters; the limit for one host is %d", len(v.Keys), maxParameters)
		return nil
	}
	e := &effect{}
	for i, n := range v.Keys {
		shown := name.Shown(n, isNameByte)
		at := document.Pointer(at, shown)
		if shown != n || n == "" || len(n) > 128 || !name.IsWordByte(n[0]) {
			c.Add(at, "%s is not the name of a parameter: up to 128 letters, digits, '_', '.' and '-', the first a letter or digit", name.Quote(shown))
		}
		value := c.Value(at, shown, v.Items[i], true)
		if v.Items[i].Has("encode") {
			c.Add(document.Pointer(at, "encode"), "is for headers")
		}
		c.NotEmpty(at, shown, value)
		e.parameters = append(e.parameters, parameter{n, value})
	}
	if len(c.List) > before || len(e.parameters) == 0 {
		return nil
	}
	slices.SortFunc(e.parameters, func(a, b parameter) int { return strings.Compare(a.name, b.name) })
	for _, p := range e.parameters {
		e.names = append(e.names, p.name)
	}
	return e
}

func isNameByte(c byte) bool { return name.IsWordByte(c) || c == '.' || c == '-' }

// effect sets parameters.
type effect struct {
	parameters []parameter // sorted by name
	names      []string    // of parameters
}

// parameter is a parameter with its value.
type parameter struct {
	name  string // decoded
	value rule.Value
}

// Key implements [rule.Effect].
func (*effect) Key() string { return Key }

// Document implements [rule.Effect].
func (e *effect) Document() any {
	out := map[string]any{}
	for _, p := range e.parameters {
		out[p.name] = p.value.Document()
	}
	return out
}

// Show implements [rule.Effect].
func (e *effect) Show() any {
	list := make([]rule.NamedView, len(e.parameters))
	for i, p := range e.parameters {
		list[i] = rule.NamedView{Name: p.name, Secret: p.value.Source}
	}
	return list
}

// Equal implements [rule.Effect].
func (e *effect) Equal(other rule.Effect) bool {
	o, ok := other.(*effect)
	return ok && slices.EqualFunc(e.parameters, o.parameters, func(a, b parameter) bool { return a.name == b.name && a.value.Equal(b.value) })
}

// Sources implements [rule.Sourced].
func (e *effect) Sources() (names []string) {
	for _, p := range e.parameters {
		names = append(names, p.value.Sources()...)
	}
	return names
}

// EachSent implements [rule.Sender].
func (e *effect) EachSent(visit func(literal name.Secret, source string)) {
	for _, p := range e.parameters {
		visit(p.value.Literal, p.value.Source)
	}
}

// SendsLater implements [rule.Sender].
func (*effect) SendsLater() bool { return true }

// ScrubsByDefault implements [rule.Sender]: servers show the URL of a request in many places.
func (*effect) ScrubsByDefault() bool { return true }

// Warn implements [rule.Warner].
func (e *effect) Warn(at string, scrubs bool, ps *document.Problems) {
	for _, p := range e.parameters {
		if scrubs {
			p.value.WarnShort(document.Pointer(document.Pointer(at, Key), p.name), ps)
		}
	}
}

// Parameters implements [rule.QuerySetter].
func (e *effect) Parameters() []string { return e.names }

// RemoveQuery implements [rule.QuerySetter].
func (e *effect) RemoveQuery(target string) (rest string, own []string) {
	for _, n := range e.names {
		var pairs []string
		target, pairs = remove(target, n)
		own = append(own, pairs...)
	}
	return target, own
}

// SetQuery implements [rule.QuerySetter].
func (e *effect) SetQuery(ctx context.Context, s rule.Secrets, target string, sent func(text string)) (string, error) {
	for _, p := range e.parameters {
		bare, err := p.value.Bare(ctx, s)
		if err != nil {
			return "", err
		}
		whole := p.value.Whole(bare)
		sent(bare)
		sent(whole)
		target = add(target, p.name, whole)
	}
	return target, nil
}

// remove returns a request target without a query parameter, in every spelling that some server may accept. The rest is
// unchanged byte for byte. own are the removed pairs that are spelled like the parameter.
func remove(target, name string) (rest string, own []string) {
	path, query, found := strings.Cut(target, "?")
	if !found {
		return target, nil
	}
	folded := foldParameter(name)
	var kept strings.Builder
	for separator := ""; query != ""; { // all servers separate parameters at "&", some at ";" as well
		pair, next, rest := query, "", ""
		if i := strings.IndexAny(query, "&;"); i >= 0 {
			pair, next, rest = query[:i], query[i:i+1], query[i+1:]
		}
		spelled, _, _ := strings.Cut(pair, "=")
		switch {
		case foldParameter(spelled) != folded && !mayFold(spelled, folded):
			kept.WriteString(separator + pair)
		case decoded(spelled) == name:
			own = append(own, pair)
		}
		query, separator = rest, next
	}
	return path + "?" + strings.TrimLeft(kept.String(), "&;"), own
}

// add returns a request target with a parameter added to its query.
func add(target, name, value string) string {
	pair := url.QueryEscape(name) + "=" + strings.ReplaceAll(url.QueryEscape(value), "+", "%20") // which means the same in a form
	switch path, query, found := strings.Cut(target, "?"); {
	case !found:
		return target + "?" + pair
	case query == "":
		return path + "?" + pair
	}
	return target + "&" + pair
}

// mayFold reports whether a name has an escape such as %uFF41 and may begin like a folded name. Servers that accept such escapes map the
// character to their own character set: it, and the rest of the name, may become anything.
func mayFold(name, folded string) bool {
	for range 4 {
		if i := match.OldEscape(name); i >= 0 {
			return strings.HasPrefix(folded, foldParameter(name[:i]))
		}
		plain := decoded(name)
		if plain == name {
			break
		}
		name = plain
	}
	return false
}

// foldParameter returns the name of a parameter as the most lenient server reads it: decoded repeatedly, in lower case, and as PHP does
// with "_" for spaces and dots and without an index in brackets.
func foldParameter(name string) string {
	for range 4 {
		plain := decoded(name)
		if plain == name {
			break
		}
		name = plain
	}
	name = strings.TrimLeft(strings.ToLower(name), " \t\r\n\v\f\x00?")
	if end := strings.IndexAny(name, "[\x00"); end > 0 {
		name = name[:end]
	}
	return strings.NewReplacer(" ", "_", ".", "_").Replace(strings.TrimRight(name, " \t\r\n\v\f"))
}

// decoded decodes the escapes of a name that are valid, those of IIS such as %u0061 as well, and leaves the others.
func decoded(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		switch {
		case name[i] == '+':
			b.WriteByte(' ')
		case name[i] == '%' && i+2 < len(name) && nibble(name[i+1]) >= 0 && nibble(name[i+2]) >= 0:
			b.WriteByte(byte(nibble(name[i+1])<<4 | nibble(name[i+2])))
			i += 2
		case strings.HasPrefix(name[i:], "%u00"), strings.HasPrefix(name[i:], "%U00"):
			if c, ok := oldByte(name[i:]); ok {
				b.WriteByte(c)
				i += 5
				continue
			}
			b.WriteByte(name[i])
		default:
			b.WriteByte(name[i])
		}
	}
	return b.String()
}

// oldByte decodes an escape of an ASCII character such as %u0061 at the beginning of a text.
func oldByte(s string) (c byte, ok bool) {
	if len(s) < 6 || nibble(s[4]) < 0 || nibble(s[5]) < 0 {
		return 0, false
	}
	c = byte(nibble(s[4])<<4 | nibble(s[5]))
	return c, c < 0x80
}

func nibble(c byte) int { return strings.IndexByte("0123456789abcdef", c|0x20) }

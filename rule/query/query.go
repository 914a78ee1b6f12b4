// Package query is the kind of rules that set parameters in the query of requests, replacing the box's own:
//
//	{"query": {"key": {"secret": "maps"}, "lang": "en"}}
package query

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"boxgate/policy/document"
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

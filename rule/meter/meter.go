// Package meter is the kind of rules for hosts of model APIs. Their requests' tokens are counted, within the budgets of the box, and only some
// models may be asked:
//
//	{"headers": {"X-Api-Key": {"secret": "anthropic"}}, "meter": "anthropic", "models": {"allow": ["claude-*"], "deny": ["claude-opus-*"]}}
//
// Package llm/wire reads requests and responses.
package meter

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"boxgate/llm"
	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/rule"
)

// Key and ModelsKey are the members of a rule's document.
const (
	Key       = "meter"
	ModelsKey = "models"
)

// Kind reads rules that count tokens.
type Kind struct{}

// vendor is the form of the member.
type vendor string

// Key implements [rule.Kind].
func (Kind) Key() string { return Key }

// Doc implements [rule.Kind].
func (Kind) Doc() string {
	return "count the tokens of the requests as this vendor's API reports them: " + vendorList() + ". Requests that cannot be counted are refused"
}

// Form implements [rule.Kind].
func (Kind) Form() reflect.Type { return reflect.TypeFor[vendor]() }

// View implements [rule.Viewed].
func (Kind) View() (form reflect.Type, doc string) { return reflect.TypeFor[vendor](), "" }

// Example implements [rule.Kind].
func (Kind) Example() string { return `"anthropic"` }

// Flags implements [rule.Flagged].
func (Kind) Flags() []rule.Flag {
	return []rule.Flag{{Name: Key, Usage: "count the tokens of the requests to this API: " + vendorList()}}
}

// FromFlag implements [rule.Flagged].
func (Kind) FromFlag(_ any, a rule.Argument) (any, error) { return a.Text, nil }

// Line implements [rule.Kind].
func (Kind) Line(shown json.RawMessage) string {
	var v string
	if json.Unmarshal(shown, &v) != nil {
		return ""
	}
	return "(metered: " + v + ")"
}

// Members implements [rule.Wide].
func (Kind) Members() []rule.Member {
	return []rule.Member{{
		Key: ModelsKey, Form: reflect.TypeFor[form](), Line: modelsLine,
		Doc: "the models that requests may ask, by their names in the requests; needs meter",
	}}
}

// form is the JSON of the models.
type form struct {
	Allow []string `json:"allow,omitempty" doc:"patterns of the names of models, where * stands for any text; absent: all models"`
	Deny  []string `json:"deny,omitempty" doc:"patterns of models that are refused although allow covers them"`
}

// SchemaName is the name of the form in the description of the API.
func (form) SchemaName() string { return "ModelNames" }

// modelsLine lists the patterns, with a minus sign before those that are denied.
func modelsLine(shown json.RawMessage) string {
	var f form
	if json.Unmarshal(shown, &f) != nil || len(f.Allow)+len(f.Deny) == 0 {
		return ""
	}
	words := append([]string{"models:"}, f.Allow...)
	for _, p := range f.Deny {
		words = append(words, "-"+p)
	}
	return strings.Join(words, " ")
}

// Bounds of the patterns of a rule.
const (
	maxPatterns = 64
	maxPattern  = 128 // bytes
)

// Parse implements [rule.Kind].
func (Kind) Parse(at string, v document.Value, c *rule.Context) rule.Effect {
	ps, before, e := &c.Problems, len(c.List), &effect{}
	modelsAt, models, has := c.Member(at, ModelsKey)
	if v.Kind == "" {
		ps.Add(modelsAt, `needs "meter" beside it, which says how requests name their model`)
		return nil
	}
	e.vendor = llm.Vendor(c.OneOf(at, v, vendorNames()...))
	if has {
		e.parseModels(modelsAt, models, ps)
	}
	if len(ps.List) > before {
		return nil
	}
	return e
}

func (e *effect) parseModels(at string, v document.Value, ps *document.Problems) {
	v.Fields(at, `an object with "allow" or "deny"`, ps, map[string]func(string, document.Value){
		"allow": func(at string, v document.Value) { e.allow = parsePatterns(at, v, ps) },
		"deny":  func(at string, v document.Value) { e.deny = parsePatterns(at, v, ps) },
	})
	if v.Kind == document.Object && len(v.Keys) == 0 {
		ps.Add(at, `has neither "allow" nor "deny"`)
	}
}

func vendorNames() (names []string) {
	for _, v := range llm.Vendors() {
		names = append(names, string(v))
	}
	return names
}

func vendorList() string { return strings.Join(vendorNames(), ", ") }

func parsePatterns(at string, v document.Value, ps *document.Problems) []string {
	list := v.AsStrings(at, ps)
	if ps.TooMany(at, len(list), maxPatterns) {
		return nil
	}
	if v.Kind == document.List && len(list) == 0 {
		ps.Add(at, "is an empty list; name the models")
	}
	out := make([]string, 0, len(list))
	for i, p := range list {
		at := document.Element(at, i)
		switch {
		case v.Items[i].Kind != document.Text:
		case p == "" || len(p) > maxPattern || strings.ContainsFunc(p, func(c rune) bool { return c <= ' ' || c > '~' }):
			ps.Add(at, "is not a pattern of model names: printable ASCII without spaces, at most %d bytes", maxPattern)
		case slices.Contains(out, strings.ToLower(p)):
			ps.Add(at, "%s is there twice", name.Quote(p))
		}
		out = append(out, strings.ToLower(p))
	}
	return out
}

// effect counts tokens as a vendor reports them. Patterns are in lower case: some servers ignore case.
type effect struct {
	vendor      llm.Vendor
	allow, deny []string
}

// Key implements [rule.Effect].
func (*effect) Key() string { return Key }

// Document implements [rule.Effect].
func (e *effect) Document() any { return string(e.vendor) }

// Show implements [rule.Effect].
func (e *effect) Show() any { return e.Document() }

// Members implements [rule.WideEffect].
func (e *effect) Members() map[string]any {
	if e.allow == nil && e.deny == nil {
		return nil
	}
	return map[string]any{ModelsKey: form{Allow: e.allow, Deny: e.deny}}
}

// Equal implements [rule.Effect].
func (e *effect) Equal(other rule.Effect) bool {
	o, ok := other.(*effect)
	return ok && e.vendor == o.vendor && slices.Equal(e.allow, o.allow) && slices.Equal(e.deny, o.deny)
}

// Vendor implements [rule.Metered].
func (e *effect) Vendor() llm.Vendor { return e.vendor }

// AllowsModel implements [rule.Metered].
func (e *effect) AllowsModel(model string) bool {
	model = strings.ToLower(model)
	covers := func(pattern string) bool { return covers(pattern, model) }
	return !slices.ContainsFunc(e.deny, covers) && (e.allow == nil || slices.ContainsFunc(e.allow, covers))
}

// covers reports whether a pattern covers a whole name. Each asterisk stands for any text. It takes time linear in both for each asterisk.
func covers(pattern, name string) bool {
	first, rest, any := strings.Cut(pattern, "*")
	if !any {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, first)
	for ok {
		var part string
		part, rest, any = strings.Cut(rest, "*")
		if !any {
			return strings.HasSuffix(name, part)
		}
		_, name, ok = strings.Cut(name, part)
	}
	return false
}

// Package header is the kind of rules that set header fields in requests, replacing every variant sent by the box, or remove fields of the box:
//
//	{"headers": {"Authorization": {"secret": "openai", "prefix": "Bearer "}}, "remove": ["X-Debug"]}
package header

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/textproto"
	"reflect"
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
)

// Key and RemoveKey are the members of a rule's document.
const (
	Key       = "headers"
	RemoveKey = "remove"
)

// MaxHeaders is the largest number of header fields that a rule may set, and that it may remove.
const MaxHeaders = 64

// Kind reads rules that set or remove header fields.
type Kind struct{}

// Key implements [rule.Kind].
func (Kind) Key() string { return Key }

// Doc implements [rule.Kind].
func (Kind) Doc() string { return "" }

// Form implements [rule.Kind].
func (Kind) Form() reflect.Type { return reflect.TypeFor[map[string]rule.ValueForm]() }

// Members implements [rule.Wide].
func (Kind) Members() []rule.Member {
	return []rule.Member{{Key: RemoveKey, Form: reflect.TypeFor[[]string](), Doc: "headers of the box that are not passed on", Line: removedLine}}
}

// View implements [rule.Viewed].
func (Kind) View() (form reflect.Type, doc string) { return reflect.TypeFor[[]rule.NamedView](), "" }

// ShowNone implements [rule.AlwaysShown].
func (Kind) ShowNone() any { return []rule.NamedView{} }

// Example implements [rule.Kind].
func (Kind) Example() string {
	return `{"Authorization": {"secret": "openai", "prefix": "Bearer "}, "X-Team": "sk-team", "X-Key": {"value": "sk-key"}}`
}

// Line implements [rule.Kind].
func (Kind) Line(shown json.RawMessage) string {
	var list []rule.NamedView
	if json.Unmarshal(shown, &list) != nil {
		return ""
	}
	lines := make([]string, len(list))
	for i, v := range list {
		lines[i] = rule.LineWithSecret(v.Name, v.Secret)
	}
	return strings.Join(lines, ", ")
}

// removedLine lists the fields that are removed, each with a minus sign.
func removedLine(shown json.RawMessage) string {
	var names []string
	if json.Unmarshal(shown, &names) != nil || len(names) == 0 {
		return ""
	}
	return "-" + strings.Join(names, ", -")
}

// secretFlag is the name of the flag for a value with a source.
const secretFlag = "secret"

// Flags implements [rule.Flagged].
func (Kind) Flags() []rule.Flag {
	return []rule.Flag{
		{Name: "header", Usage: "NAME=VALUE, NAME=@FILE or NAME=- (standard input)", Names: "HEADER", Readable: true},
		{Name: secretFlag, Usage: "NAME=SECRET or 'NAME=text {SECRET} text': a header from a secret of the gateway's configuration", Names: "HEADER", Secret: true},
	}
}

// FromFlag implements [rule.Flagged].
func (Kind) FromFlag(member any, a rule.Argument) (any, error) {
	headers, ok := member.(map[string]any)
	if !ok {
		headers = map[string]any{}
	}
	if a.Flag != secretFlag {
		headers[a.Name] = a.Text
		return headers, nil
	}
	if _, twice := headers[a.Name]; twice {
		return nil, fmt.Errorf("the header %q is given twice", a.Name)
	}
	headers[a.Name] = sourced(a.Text)
	return headers, nil
}

// sourced reads "SECRET" or "text {SECRET} text".
func sourced(text string) map[string]string {
	prefix, rest, ok := strings.Cut(text, "{")
	if !ok {
		return map[string]string{"secret": text}
	}
	n, suffix, _ := strings.Cut(rest, "}")
	value := map[string]string{"secret": n}
	if prefix != "" {
		value["prefix"] = prefix
	}
	if suffix != "" {
		value["suffix"] = suffix
	}
	return value
}

// Header is a header field that a rule sets or removes.
type Header struct {
	Name       string // canonical form (textproto.CanonicalMIMEHeaderKey); HTTP/2 sends it in lower case
	rule.Value        // the empty literal with Remove
	Remove     bool   // variants sent by the box are removed, and none is set
}

// Equal reports whether h and o have the same name, value and Remove.
func (h Header) Equal(o Header) bool {
	return h.Name == o.Name && h.Remove == o.Remove && h.Value.Equal(o.Value)
}

// Sort sorts by name.
func Sort(list []Header) {
	slices.SortFunc(list, func(a, b Header) int { return cmp.Compare(a.Name, b.Name) })
}

// New returns an effect with these fields, sorted by name. It keeps the list.
func New(list []Header) rule.Effect {
	e := &effect{list: list, fields: make([]rule.Field, len(list))}
	for i, h := range list {
		e.fields[i] = rule.Field{Name: h.Name, Value: h.Literal, Remove: h.Remove}
		e.sourced = e.sourced || h.Source != ""
		if h.Remove {
			e.removed = append(e.removed, h.Name)
		} else {
			e.set = append(e.set, h.Name)
		}
	}
	return e
}

// Of returns the fields that the effects of a rule set and remove. The list must not be modified.
func Of(effects []rule.Effect) []Header {
	for _, e := range effects {
		if e, ok := e.(*effect); ok {
			return e.list
		}
	}
	return nil
}

// Parse implements [rule.Kind]. It returns an effect after mistakes, too, for further checks.
func (Kind) Parse(at string, v document.Value, c *rule.Context) rule.Effect {
	var list []Header
	if v.Kind != "" {
		list = parseSet(at, v, c)
	}
	if at, v, ok := c.Member(at, RemoveKey); ok {
		list = append(list, parseRemoved(at, v, c)...)
	}
	if len(list) == 0 {
		return nil
	}
	Sort(list)
	return New(list)
}

// parseSet reads fields with their values.
func parseSet(at string, v document.Value, c *rule.Context) []Header {
	if v.Kind != document.Object {
		c.Add(at, "is %s; want an object of header names and values", v.Kind)
		return nil
	}
	if len(v.Keys) > MaxHeaders {
		c.Add(at, "there are %d headers; the limit for one host is %d", len(v.Keys), MaxHeaders)
		return nil
	}
	list := make([]Header, 0, len(v.Keys))
	seen := map[string]string{}
	for i, n := range v.Keys {
		shown, folded := name.Shown(n, name.IsToken), match.FoldHeader(n)
		at := document.Pointer(at, shown)
		if flaw := match.HeaderFlaw(n); flaw != "" {
			c.Add(at, "%s %s", name.Quote(shown), flaw)
		} else if other, twice := seen[folded]; twice {
			c.Add(at, "%s and %s are the same header to a server; keep one of them", name.Quote(other), name.Quote(n))
		}
		seen[folded] = n
		list = append(list, Header{Name: textproto.CanonicalMIMEHeaderKey(n), Value: c.Value(at, shown, v.Items[i], true)})
	}
	return list
}

// parseRemoved reads the names of fields to remove.
func parseRemoved(at string, v document.Value, c *rule.Context) []Header {
	names := v.AsStrings(at, &c.Problems)
	if c.TooMany(at, len(names), MaxHeaders) {
		return nil
	}
	list := make([]Header, len(names))
	for i, n := range names {
		if flaw := match.HeaderFlaw(n); flaw != "" {
			c.Add(document.Element(at, i), "%s %s", name.Quote(name.Shown(n, name.IsToken)), strings.Replace(flaw, "cannot be set", "cannot be removed", 1))
		}
		list[i] = Header{Name: textproto.CanonicalMIMEHeaderKey(n), Value: rule.Value{Literal: name.NewSecret("")}, Remove: true}
	}
	return list
}

// ReadPlain reads an object of header names and literal values, sorted by name. It is for dialects without secrets of the gateway: an API key
// that may write policies is not necessarily allowed to name secrets.
func ReadPlain(at string, v document.Value, ps *document.Problems) []Header {
	c := &rule.Context{Find: rule.Configured(func(string) bool { return false })}
	list := parseSet(at, v, c)
	Sort(list)
	for _, h := range list {
		if h.Source != "" {
			ps.Add(document.Pointer(at, h.Name), "is not text; name secrets of the gateway in attach_headers")
		}
	}
	for _, problem := range c.List {
		ps.Add(problem.Pointer, "%s", problem.Message)
	}
	return list
}

// effect sets and removes header fields.
type effect struct {
	list         []Header     // sorted by name
	fields       []rule.Field // of list, without the values of sources
	sourced      bool         // some value has a source
	set, removed []string     // names
}

// Key implements [rule.Effect].
func (*effect) Key() string { return Key }

// Document implements [rule.Effect].
func (e *effect) Document() any {
	if len(e.set) == 0 {
		return nil
	}
	out := map[string]any{}
	for _, h := range e.list {
		if !h.Remove {
			out[h.Name] = h.Value.Document()
		}
	}
	return out
}

// Members implements [rule.WideEffect].
func (e *effect) Members() map[string]any {
	if len(e.removed) == 0 {
		return nil
	}
	return map[string]any{RemoveKey: e.removed}
}

// Show implements [rule.Effect].
func (e *effect) Show() any {
	list := []rule.NamedView{}
	for _, h := range e.list {
		if !h.Remove {
			list = append(list, rule.NamedView{Name: h.Name, Secret: h.Source})
		}
	}
	return list
}

// Equal implements [rule.Effect].
func (e *effect) Equal(other rule.Effect) bool {
	o, ok := other.(*effect)
	return ok && slices.EqualFunc(e.list, o.list, Header.Equal)
}

// Sources implements [rule.Sourced].
func (e *effect) Sources() (names []string) {
	for _, h := range e.list {
		names = append(names, h.Value.Sources()...)
	}
	return names
}

// EachSent implements [rule.Sender].
func (e *effect) EachSent(visit func(literal name.Secret, source string)) {
	for _, h := range e.list {
		if !h.Remove {
			visit(h.Literal, h.Source)
		}
	}
}

// SendsLater implements [rule.Sender]: the values are fetched when a request is judged.
func (*effect) SendsLater() bool { return false }

// ScrubsByDefault implements [rule.Sender].
func (*effect) ScrubsByDefault() bool { return false }

// Check implements [rule.Checker]. It refuses fields that are removed twice, both set and removed, or set by the signature of the rule.
func (e *effect) Check(at string, all []rule.Effect, ps *document.Problems) {
	set, removed := map[string]bool{}, map[string]bool{}
	for _, n := range e.set {
		set[match.FoldHeader(n)] = true
	}
	for _, n := range e.removed {
		switch folded := match.FoldHeader(n); {
		case set[folded]:
			ps.Add(document.Pointer(at, RemoveKey), "%s is set as well: every variant that the box sends is removed then anyway", name.Quote(n))
		case removed[folded]:
			ps.Add(document.Pointer(at, RemoveKey), "%s is there twice", name.Quote(n))
		default:
			removed[folded] = true
		}
	}
	signer := rule.Requests(all).Signer
	if signer == nil {
		return
	}
	for _, h := range e.list {
		if signer.SetsHeader(h.Name) {
			ps.Add(document.Pointer(document.Pointer(at, Key), h.Name), "is set by the signature")
		}
	}
}

// Warn implements [rule.Warner]. It warns of literals that are too short to be masked, and of fields that servers echo or store readably.
func (e *effect) Warn(at string, scrubs bool, ps *document.Problems) {
	for _, h := range e.list {
		at := document.Pointer(document.Pointer(at, Key), h.Name)
		if scrubs && !h.Remove {
			h.WarnShort(at, ps)
		}
		if !h.Remove && match.ShownHeader(h.Name) {
			ps.Add(at, "servers print this header, send it back or store it readably: its value should be no secret")
		}
	}
}

// HeaderNames implements [rule.HeaderSetter].
func (e *effect) HeaderNames() (set, removed []string) { return e.set, e.removed }

// HeaderFields implements [rule.HeaderSetter].
func (e *effect) HeaderFields(ctx context.Context, s rule.Secrets) ([]rule.Field, error) {
	if !e.sourced {
		return e.fields, nil
	}
	fields := slices.Clone(e.fields)
	for i := range fields {
		if h := &e.list[i]; h.Source != "" {
			if err := h.fill(ctx, s, &fields[i]); err != nil {
				return nil, err
			}
		}
	}
	return fields, nil
}

// fill sets the value of a field from its source.
func (h *Header) fill(ctx context.Context, s rule.Secrets, f *rule.Field) error {
	bare, err := s.Text(ctx, h.Source)
	if err != nil {
		return err
	}
	whole := h.Whole(bare)
	if err := match.CheckHeaderValue(whole); err != nil {
		return fmt.Errorf("secret %q in %s: %w", h.Source, h.Name, err)
	}
	if f.Value = name.NewSecret(whole); !h.Basic {
		f.Before, f.After = len(h.Prefix), len(h.Suffix)
	}
	return nil
}

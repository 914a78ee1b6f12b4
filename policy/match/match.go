package match

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

// Match is the condition of a rule on requests: all parts that are set must cover the request. The zero value covers every request.
type Match struct {
	Methods []string `json:"methods,omitempty" doc:"any of them; none given: every method"`
	Path    *Matcher `json:"path,omitempty"`
	Query   Pairs    `json:"query,omitzero" doc:"every one must be met by a parameter of the query"`
	Headers Pairs    `json:"headers,omitzero" doc:"every one must be met by a header"`
	MCP     *MCP     `json:"mcp,omitempty" doc:"in request rules only: conditions on the messages of the Model Context Protocol in the body"`
	GraphQL *GraphQL `json:"graphql,omitempty" doc:"in request rules only: conditions on the GraphQL operations of the request"`
}

// Matcher compares a text. Exactly one field is set.
type Matcher struct {
	Exact  *string `json:"exact,omitempty"`
	Prefix *string `json:"prefix,omitempty"`
	Regex  *string `json:"regex,omitempty" doc:"RE2, not anchored unless written so"`
}

// Pair is met by a parameter or header if Key covers its name and Value its value. A nil Value covers every value.
type Pair struct {
	Key   Matcher  `json:"key"`
	Value *Matcher `json:"value,omitempty"`
}

// SchemaName is the name in the description of the API.
func (Pair) SchemaName() string { return "MatchPair" }

// Pairs are the conditions on the query or the headers of a request. In JSON they are an object of names and
// matchers, or a list of pairs, whose keys may be matchers of any kind.
type Pairs struct {
	Pairs []Pair
}

// Exact returns a matcher for one text.
func Exact(s string) *Matcher { return &Matcher{Exact: &s} }

// Prefix returns a matcher for texts that begin with s.
func Prefix(s string) *Matcher { return &Matcher{Prefix: &s} }

// Regex returns a matcher for a regular expression.
func Regex(s string) *Matcher { return &Matcher{Regex: &s} }

// IsZero reports whether there are no conditions.
func (m Pairs) IsZero() bool { return len(m.Pairs) == 0 }

// IsZero reports whether the match covers every request.
func (m Match) IsZero() bool {
	return len(m.Methods) == 0 && m.Path == nil && m.Query.IsZero() && m.Headers.IsZero() && m.MCP == nil && m.GraphQL == nil
}

// Forms lists both forms for the description of the API.
func (Pairs) Forms() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[map[string]Matcher](), reflect.TypeFor[[]Pair]()}
}

// MarshalJSON writes the object if the keys are distinct names, else the list.
func (m Pairs) MarshalJSON() ([]byte, error) {
	named := make(map[string]*Matcher, len(m.Pairs))
	for _, p := range m.Pairs {
		if p.Key.Exact == nil || p.Value == nil || named[*p.Key.Exact] != nil {
			return json.Marshal(m.Pairs)
		}
		named[*p.Key.Exact] = p.Value
	}
	return json.Marshal(named)
}

// UnmarshalJSON reads both forms.
func (m *Pairs) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	m.Pairs = nil
	switch {
	case bytes.HasPrefix(data, []byte("[")):
		return d.Decode(&m.Pairs)
	case !bytes.HasPrefix(data, []byte("{")):
		return errors.New("want an object of names and matchers, or a list")
	}
	var named map[string]Matcher
	if err := d.Decode(&named); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		value := named[name]
		m.Pairs = append(m.Pairs, Pair{Key: *Exact(name), Value: &value})
	}
	return nil
}

// Clone returns a copy that shares no list with m. It shares matchers and conditions on messages, which are never modified.
func (m *Match) Clone() *Match {
	if m == nil {
		return nil
	}
	return &Match{
		slices.Clone(m.Methods), m.Path, Pairs{slices.Clone(m.Query.Pairs)}, Pairs{slices.Clone(m.Headers.Pairs)}, m.MCP, m.GraphQL,
	}
}

// String returns a match in one line, for decisions.
func (m Match) String() string {
	var parts []string
	if len(m.Methods) > 0 {
		parts = append(parts, strings.Join(m.Methods, ","))
	}
	if m.Path != nil {
		parts = append(parts, "path"+m.Path.describe())
	}
	for _, p := range m.Query.Pairs {
		parts = append(parts, "query "+p.describe())
	}
	for _, p := range m.Headers.Pairs {
		parts = append(parts, "header "+p.describe())
	}
	if m.MCP != nil {
		parts = append(parts, m.MCP.describe())
	}
	if m.GraphQL != nil {
		parts = append(parts, m.GraphQL.describe())
	}
	return strings.Join(parts, " ")
}

func (p Pair) describe() string {
	name := strings.TrimPrefix(p.Key.describe(), "=")
	if p.Value == nil {
		return name
	}
	return name + p.Value.describe()
}

func (m Matcher) describe() string {
	switch {
	case m.Exact != nil:
		return "=" + *m.Exact
	case m.Prefix != nil:
		return "=" + *m.Prefix + "*"
	case m.Regex != nil:
		return "~" + *m.Regex
	}
	return ""
}

// Read reads a match without checking its values.
func Read(at string, v document.Value, ps *document.Problems) *Match {
	var m Match
	v.Fields(at, "an object with methods, path, query, headers, mcp and graphql", ps, map[string]func(string, document.Value){
		"methods": func(at string, v document.Value) { m.Methods = v.AsStrings(at, ps) },
		"path":    func(at string, v document.Value) { m.Path = readMatcher(at, v, ps) },
		"query":   func(at string, v document.Value) { m.Query = readPairs(at, v, ps) },
		"headers": func(at string, v document.Value) { m.Headers = readPairs(at, v, ps) },
		"mcp":     func(at string, v document.Value) { m.MCP = readMCP(at, v, ps) },
		"graphql": func(at string, v document.Value) { m.GraphQL = readGraphQL(at, v, ps) },
	})
	return &m
}

func readMatcher(at string, v document.Value, ps *document.Problems) *Matcher {
	var m Matcher
	text := func(to **string) func(string, document.Value) {
		return func(at string, v document.Value) {
			s := v.AsString(at, ps)
			*to = &s
		}
	}
	v.Fields(at, `an object with one of "exact", "prefix" and "regex"`, ps, map[string]func(string, document.Value){
		"exact": text(&m.Exact), "prefix": text(&m.Prefix), "regex": text(&m.Regex),
	})
	return &m
}

// readPairs reads both forms of conditions on a query or on headers.
func readPairs(at string, v document.Value, ps *document.Problems) (out Pairs) {
	switch v.Kind {
	case document.Object:
		for i, name := range v.Keys {
			value := readMatcher(document.Pointer(at, name), v.Items[i], ps)
			out.Pairs = append(out.Pairs, Pair{*Exact(name), value})
		}
	case document.List:
		for i, item := range v.Items {
			at := document.Element(at, i)
			pair := Pair{}
			item.Fields(at, "an object with key and value", ps, map[string]func(string, document.Value){
				"key":   func(at string, v document.Value) { pair.Key = *readMatcher(at, v, ps) },
				"value": func(at string, v document.Value) { pair.Value = readMatcher(at, v, ps) },
			})
			out.Pairs = append(out.Pairs, pair)
		}
	default:
		ps.Add(at, "is %s; want an object of names and matchers, or a list of keys and values", v.Kind)
	}
	return out
}

// Fields are the forwarded header fields of a request with the names in Needs, from [policy.Compiled.Needs]. With a nil *Fields
// no field is known.
type Fields struct {
	Needs *Needs
	List  []Field
}

// Field is one header field, as forwarded.
type Field struct{ Name, Value string }

// Needs is the set of header fields that rules look at.
type Needs struct {
	all   bool     // some rule has a prefix or a regular expression for names
	names []string // folded, see foldHeader
}

// NeedsOf returns the set of fields with any variant of the names.
func NeedsOf(names ...string) (n Needs) {
	for _, name := range names {
		n.Add(Needs{names: []string{FoldHeader(name)}})
	}
	return n
}

// Wants reports whether rules look at fields with any variant of a name.
func (n *Needs) Wants(name string) bool {
	return n != nil && (n.all || slices.Contains(n.names, FoldHeader(name)))
}

// Add adds the fields of other.
func (n *Needs) Add(other Needs) {
	n.all = n.all || other.all
	for _, name := range other.names {
		if !slices.Contains(n.names, name) {
			n.names = append(n.names, name)
		}
	}
}

func (n *Needs) IsZero() bool { return !n.all && len(n.names) == 0 }

// knows reports whether the fields of a matcher are known.
func (f *Fields) knows(m *pairMatcher) bool {
	if f == nil || f.Needs == nil {
		return false
	}
	return f.Needs.all || m.key.exact && slices.Contains(f.Needs.names, m.folded)
}

// Covers reports whether n contains all fields of other.
func (n *Needs) Covers(other Needs) bool {
	if n == nil {
		return false
	}
	return n.all || !other.all && !slices.ContainsFunc(other.names, func(s string) bool { return !slices.Contains(n.names, s) })
}

// AllFields returns Fields with a complete list.
func AllFields(list []Field) *Fields { return &Fields{Needs: &Needs{all: true}, List: list} }

// FoldHeader returns a name in lower case with "-" for "_", which are equal for servers that turn headers into variables (CGI).
func FoldHeader(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// refusedHeaders belong to the connection or to the framing of the message (RFC 9110 7.6.1 and 7.2, RFC 9112 6), and are set
// by the gateway.
var refusedHeaders = map[string]string{
	"connection":          "is hop-by-hop",
	"keep-alive":          "is hop-by-hop",
	"proxy-connection":    "is hop-by-hop",
	"proxy-authenticate":  "is hop-by-hop",
	"proxy-authorization": "is hop-by-hop",
	"te":                  "is hop-by-hop",
	"trailer":             "is hop-by-hop",
	"transfer-encoding":   "is hop-by-hop",
	"upgrade":             "is hop-by-hop",
	"http2-settings":      "is hop-by-hop",
	"host":                "names the destination that the policy judges",
	"content-length":      "belongs to the framing of the message",
	"expect":              "belongs to the framing of the message",
}

// HeaderFlaw returns a sentence whose subject is the name, or "" if the header may be set.
func HeaderFlaw(n string) string {
	switch {
	case n == "":
		return "is an empty header name"
	case len(n) > 256:
		return "is longer than 256 bytes"
	case n[0] == ':':
		return "is a pseudo-header; the gateway keeps those of the request"
	}
	for _, r := range n {
		if r >= utf8.RuneSelf || !name.IsToken(byte(r)) {
			return "is not a header name: " + name.Quote(string(r)) + " is not allowed in one"
		}
	}
	if flaw, refused := refusedHeaders[FoldHeader(n)]; refused {
		return flaw + ", and cannot be set"
	}
	return ""
}

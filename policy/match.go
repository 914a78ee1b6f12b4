package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Match says which requests a rule is for: those that all given parts cover. The zero value covers every request.
type Match struct {
	Methods []string   `json:"methods,omitempty" doc:"any of them; none given: every method"`
	Path    *Matcher   `json:"path,omitempty"`
	Query   MatchPairs `json:"query,omitzero" doc:"every one must be met by a parameter of the query"`
	Headers MatchPairs `json:"headers,omitzero" doc:"every one must be met by a header"`
}

// Matcher compares a text. Exactly one field is given.
type Matcher struct {
	Exact  *string `json:"exact,omitempty"`
	Prefix *string `json:"prefix,omitempty"`
	Regex  *string `json:"regex,omitempty" doc:"RE2, not anchored unless written so"`
}

// MatchPair is met by a parameter or header whose name Key covers and whose value Value does; nil covers every value.
type MatchPair struct {
	Key   Matcher  `json:"key"`
	Value *Matcher `json:"value,omitempty"`
}

// MatchPairs are the conditions on the query or the headers of a request. In JSON they are an object of names and
// matchers, or a list of pairs, whose keys may be matchers of any kind.
type MatchPairs struct {
	Pairs []MatchPair
}

// MatchExact returns a matcher for one text.
func MatchExact(s string) *Matcher { return &Matcher{Exact: &s} }

// MatchPrefix returns a matcher for the texts that begin with s.
func MatchPrefix(s string) *Matcher { return &Matcher{Prefix: &s} }

// MatchRegex returns a matcher for a regular expression.
func MatchRegex(s string) *Matcher { return &Matcher{Regex: &s} }

// IsZero reports whether there are no conditions.
func (m MatchPairs) IsZero() bool { return len(m.Pairs) == 0 }

// IsZero reports whether the match covers every request.
func (m Match) IsZero() bool {
	return len(m.Methods) == 0 && m.Path == nil && m.Query.IsZero() && m.Headers.IsZero()
}

// Forms lists both forms for the description of the API.
func (MatchPairs) Forms() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[map[string]Matcher](), reflect.TypeFor[[]MatchPair]()}
}

// MarshalJSON writes the object if every key is a name that occurs once, else the list.
func (m MatchPairs) MarshalJSON() ([]byte, error) {
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
func (m *MatchPairs) UnmarshalJSON(data []byte) error {
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
		m.Pairs = append(m.Pairs, MatchPair{Key: *MatchExact(name), Value: &value})
	}
	return nil
}

// clone returns a copy that shares no list with m. Matchers are never modified, and are shared.
func (m *Match) clone() *Match {
	if m == nil {
		return nil
	}
	return &Match{slices.Clone(m.Methods), m.Path, MatchPairs{slices.Clone(m.Query.Pairs)}, MatchPairs{slices.Clone(m.Headers.Pairs)}}
}

// String writes a match in one line, as decisions name it.
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
	return strings.Join(parts, " ")
}

func (p MatchPair) describe() string {
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

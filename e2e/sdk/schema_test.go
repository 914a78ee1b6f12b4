package sdk

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// schema is a JSON schema, with the keywords that the description uses.
type schema struct {
	any bool // every value is valid

	Ref                  string             `json:"$ref"`
	Type                 string             `json:"type"`
	Format               string             `json:"format"`
	Enum                 []string           `json:"enum"`
	AnyOf                []*schema          `json:"anyOf"`
	Items                *schema            `json:"items"`
	Properties           map[string]*schema `json:"properties"`
	Required             []string           `json:"required"`
	AdditionalProperties json.RawMessage    `json:"additionalProperties"`
	Minimum, Maximum     *int64
}

// additional returns the schema of unnamed members, or nil if they are not allowed.
func (s *schema) additional() *schema {
	if string(s.AdditionalProperties) == "true" {
		return &schema{any: true}
	}
	var of schema
	if len(s.AdditionalProperties) == 0 || json.Unmarshal(s.AdditionalProperties, &of) != nil {
		return nil
	}
	return &of
}

// schemas maps names to the schemas of the description.
type schemas map[string]*schema

func (all schemas) resolve(s *schema) *schema {
	for s.Ref != "" {
		s = all[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
	}
	return s
}

// faults lists the differences between a value and its schema.
func (all schemas) faults(s *schema, v any, at string) []string {
	s = all.resolve(s)
	if s.any {
		return nil
	}
	if len(s.AnyOf) > 0 {
		var found []string
		for _, form := range s.AnyOf {
			faults := all.faults(form, v, at)
			if len(faults) == 0 {
				return nil
			}
			found = append(found, faults...)
		}
		return found
	}
	if want, ok := jsonType(v); s.Type != want && (s.Type != "number" || want != "integer") || !ok {
		return []string{fmt.Sprintf("%s is %T, not %s", at, v, s.Type)}
	}
	switch v := v.(type) {
	case map[string]any:
		return all.faultsOfObject(s, v, at)
	case []any:
		var found []string
		for i, item := range v {
			found = append(found, all.faults(s.Items, item, fmt.Sprintf("%s/%d", at, i))...)
		}
		return found
	case string:
		if len(s.Enum) > 0 && !slices.Contains(s.Enum, v) {
			return []string{fmt.Sprintf("%s is %q, not one of %v", at, v, s.Enum)}
		}
		if _, err := time.Parse(time.RFC3339Nano, v); s.Format == "date-time" && err != nil {
			return []string{fmt.Sprintf("%s is no time: %q", at, v)}
		}
	}
	return nil
}

func (all schemas) faultsOfObject(s *schema, v map[string]any, at string) []string {
	var found []string
	for _, name := range s.Required {
		if _, ok := v[name]; !ok {
			found = append(found, at+"/"+name+" is missing")
		}
	}
	for name, member := range v {
		of := s.Properties[name]
		if of == nil {
			of = s.additional()
		}
		if of == nil {
			found = append(found, at+"/"+name+" is not described")
			continue
		}
		found = append(found, all.faults(of, member, at+"/"+name)...)
	}
	return found
}

// jsonType returns the name of a value's type in JSON schemas.
func jsonType(v any) (string, bool) {
	switch v := v.(type) {
	case map[string]any:
		return "object", true
	case []any:
		return "array", true
	case string:
		return "string", utf8.ValidString(v)
	case bool:
		return "boolean", true
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return "number", true
		}
		return "integer", true
	}
	return "null", false
}

// generator generates values of a schema, and some invalid ones.
type generator struct {
	*rand.Rand
	all  schemas
	skip []string // members that are never generated
}

// words are the parts of generated strings: names that mean something to the API, and harmful ones.
var words = []string{
	"", "a", "web-1", "fuzz-a", "true", "echo", "api.example.com", "*.example.org:443", "192.0.2.0/24", "2001:db8::/32", "/", "/tmp", "..", "../../etc",
	"/proc/self/root", "Authorization", "1h", "* * * * *", "main", "GET", "\x00", "\u202e", "{}", "null", "0", "-1", "%2e%2e%2f", "🦀", "a b", "a\nb", "https://x/",
	strings.Repeat("x", 300), strings.Repeat("é", 5000),
}

func (g *generator) pick(from []string) string { return from[g.IntN(len(from))] }

// value returns a value of a schema, with at most the given depth.
func (g *generator) value(s *schema, depth int) any {
	s = g.all.resolve(s)
	if len(s.AnyOf) > 0 {
		return g.value(s.AnyOf[g.IntN(len(s.AnyOf))], depth)
	}
	switch s.Type {
	case "object":
		return g.object(s, depth)
	case "array":
		list := []any{}
		for range g.IntN(4) {
			if depth > 0 {
				list = append(list, g.value(s.Items, depth-1))
			}
		}
		return list
	case "boolean":
		return g.IntN(2) == 0
	case "integer":
		return g.integer(s)
	case "number":
		return g.Float64()
	}
	if len(s.Enum) > 0 {
		return g.pick(s.Enum)
	}
	return g.pick(words)
}

func (g *generator) object(s *schema, depth int) map[string]any {
	made := map[string]any{}
	if of := s.additional(); of != nil && depth > 0 {
		for range g.IntN(3) {
			made[g.pick(words)] = g.value(of, depth-1)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		wanted := slices.Contains(s.Required, name) || g.IntN(3) == 0
		if wanted && depth > 0 && !slices.Contains(g.skip, name) {
			made[name] = g.value(s.Properties[name], depth-1)
		}
	}
	return made
}

func (g *generator) integer(s *schema) int64 {
	low, high := int64(-3), int64(1<<40)
	if s.Minimum != nil {
		low = *s.Minimum
	}
	if s.Maximum != nil {
		high = *s.Maximum
	}
	switch g.IntN(4) {
	case 0:
		return low
	case 1:
		return high
	}
	return low + g.Int64N(min(high-low, 70_000)+1)
}

// makeInvalid changes a value so that it violates its schema. Members that may be any object stay.
func (g *generator) makeInvalid(s *schema, v any) any {
	object, ok := v.(map[string]any)
	if !ok {
		return []any{v}
	}
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(object)), func(key string) bool {
		of := s.Properties[key]
		return of != nil && string(g.all.resolve(of).AdditionalProperties) == "true"
	})
	if len(keys) > 0 && g.IntN(2) == 0 {
		key := g.pick(keys)
		object[key] = map[string]any{"no name of anything": []any{object[key]}} // not a valid host either
		return object
	}
	object["not_a_field"] = 1
	return object
}

// TestDescriptionIsLinted: the description of the API passes the recommended rules of Redocly's linter.
func TestDescriptionIsLinted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	w, _ := newWorld(t)
	var doc json.RawMessage
	if err := w.Client.Do(t.Context(), "GET", "/openapi.json", nil, &doc); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(n.Dir, "openapi.json")
	if err := os.WriteFile(path, doc, 0o600); err != nil {
		t.Fatal(err)
	}
	err := lines(w, n.Command(t.Context(), "lint.mjs", path), func(dec *json.Decoder) error {
		var problem struct{ Rule, At, Message string }
		if err := dec.Decode(&problem); err != nil {
			return err
		}
		t.Errorf("%s: %s (%s)", problem.At, problem.Message, problem.Rule)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Package schema compares the structured answers of agents with JSON Schema (draft 2020-12, and the older spellings that
// zod-to-json-schema writes). The answer is text from a box and the schema that of an API key, so the work of a comparison is
// bounded, and nothing is loaded from elsewhere. Keywords that only describe, such as format, are not compared.
package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxSteps = 1 << 18 // comparisons of a value with a schema, in one call of Check
	maxDepth = 512     // nested comparisons

	itemsPerStep = 8   // of a list in the schema that is gone through
	sizePerStep  = 512 // bytes of a text times the size of the expression with which it is compared
)

// ErrWork is the error of a comparison that would take too long.
var ErrWork = errors.New("the answer cannot be compared with the schema: that takes too many steps")

// Schema is a schema that was read. Safe for concurrent use.
type Schema struct {
	root     any
	patterns map[string]pattern
}

// Parse reads a schema, which must be an object. Regular expressions that RE2 does not know, and those beyond the bounds of their
// size, match everything.
func Parse(data []byte) (*Schema, error) {
	s := &Schema{}
	if err := json.Unmarshal(data, &s.root); err != nil {
		return nil, fmt.Errorf("it is not JSON: %w", err)
	}
	if _, ok := s.root.(map[string]any); !ok {
		return nil, errors.New("it is not an object")
	}
	s.patterns = compile(collect(s.root, map[string]bool{}))
	return s, nil
}

// Check returns nil if a value in JSON matches the schema. The error names the place in the value, and quotes at most the names of
// its members.
func (s *Schema) Check(value []byte) error {
	var v any
	if json.Unmarshal(value, &v) != nil {
		return errors.New("it is not JSON, or not JSON alone")
	}
	return (&check{Schema: s}).value(s.root, v, "")
}

// check is one comparison.
type check struct {
	*Schema
	steps, depth int
}

// spend counts steps.
func (c *check) spend(steps int) error {
	if c.steps += steps; c.steps > maxSteps {
		return ErrWork
	}
	return nil
}

// matches reports whether a text matches an expression. One that is not known matches. The error is [ErrWork].
func (c *check) matches(text, in string) (bool, error) {
	p, known := c.patterns[text]
	if err := c.spend(1 + len(in)*p.size/sizePerStep); err != nil || !known {
		return true, err
	}
	return p.MatchString(in), nil
}

// mismatch returns the error of a value at a place.
func mismatch(at, format string, args ...any) error {
	if at == "" {
		at = "the answer"
	}
	return fmt.Errorf("%s %s", at, fmt.Sprintf(format, args...))
}

// join returns the place of a member. It does not grow further in deep values: it is made for each member.
func join(at, name string) string {
	if len(at) > 200 {
		return at
	}
	return at + "/" + name[:min(len(name), 100)]
}

// value compares a value with a schema.
func (c *check) value(schema, v any, at string) error {
	c.depth++
	defer func() { c.depth-- }()
	if err := c.spend(1); err != nil || c.depth > maxDepth {
		return ErrWork
	}
	m, ok := schema.(map[string]any)
	if !ok {
		if schema == false {
			return mismatch(at, "must not be there")
		}
		return nil
	}
	for _, part := range []func(map[string]any, any, string) error{c.reference, c.kind, c.choices, c.combined} {
		if err := part(m, v, at); err != nil {
			return err
		}
	}
	switch v := v.(type) {
	case map[string]any:
		return c.object(m, v, at)
	case []any:
		return c.array(m, v, at)
	case string:
		return c.text(m, v, at)
	case float64:
		return number(m, v, at)
	}
	return nil
}

// reference follows a $ref into the same schema.
func (c *check) reference(m map[string]any, v any, at string) error {
	ref, ok := m["$ref"].(string)
	if !ok {
		return nil
	}
	if err := c.spend(len(ref) / itemsPerStep); err != nil {
		return err
	}
	path, local := strings.CutPrefix(ref, "#")
	if !local {
		return fmt.Errorf("the schema refers to %.100q, which is not in it", ref)
	}
	target := c.root
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if part == "" {
			continue
		}
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		switch t := target.(type) {
		case map[string]any:
			target = t[part]
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(t) {
				return fmt.Errorf("the schema refers to %.100q, which is not in it", ref)
			}
			target = t[i]
		default:
			target = nil
		}
		if target == nil {
			return fmt.Errorf("the schema refers to %.100q, which is not in it", ref)
		}
	}
	return c.value(target, v, at)
}

// kind compares the type.
func (c *check) kind(m map[string]any, v any, at string) error {
	var wanted []string
	switch t := m["type"].(type) {
	case string:
		wanted = []string{t}
	case []any:
		if err := c.spend(len(t) / itemsPerStep); err != nil {
			return err
		}
		for _, one := range t {
			if s, ok := one.(string); ok {
				wanted = append(wanted, s)
			}
		}
	}
	if v == nil && m["nullable"] == true || len(wanted) == 0 {
		return nil
	}
	is := kindOf(v)
	if slices.Contains(wanted, is) || is == "integer" && slices.Contains(wanted, "number") {
		return nil
	}
	return mismatch(at, "must be %s, and is %s", strings.Join(wanted, " or "), is)
}

func kindOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case float64:
		if v == math.Trunc(v) {
			return "integer"
		}
		return "number"
	}
	return "object"
}

// choices compares enum and const.
func (c *check) choices(m map[string]any, v any, at string) error {
	if wanted, ok := m["const"]; ok && !c.equal(wanted, v) {
		return mismatch(at, "must be the value of const")
	}
	values, ok := m["enum"].([]any)
	if !ok || slices.ContainsFunc(values, func(one any) bool { return c.equal(one, v) }) {
		return nil
	}
	return mismatch(at, "must be one of the %d values of enum", len(values))
}

// equal compares two values; each member is a step.
func (c *check) equal(a, b any) bool {
	if c.steps++; c.steps > maxSteps {
		return false
	}
	switch a := a.(type) {
	case map[string]any:
		other, ok := b.(map[string]any)
		if !ok || len(a) != len(other) {
			return false
		}
		for k, v := range a {
			if o, has := other[k]; !has || !c.equal(v, o) {
				return false
			}
		}
		return true
	case []any:
		other, ok := b.([]any)
		return ok && slices.EqualFunc(a, other, c.equal)
	}
	switch b.(type) {
	case map[string]any, []any:
		return false
	}
	return a == b
}

// combined compares allOf, anyOf, oneOf, not and if.
func (c *check) combined(m map[string]any, v any, at string) error {
	for _, one := range list(m["allOf"]) {
		if err := c.value(one, v, at); err != nil {
			return err
		}
	}
	for _, keyword := range []string{"anyOf", "oneOf"} {
		if _, given := m[keyword].([]any); !given {
			continue
		}
		n, err := c.count(list(m[keyword]), v, at)
		if err != nil {
			return err
		}
		if n == 0 || keyword == "oneOf" && n > 1 {
			return mismatch(at, "matches %d of the schemas in %s", n, keyword)
		}
	}
	if not, given := m["not"]; given {
		n, err := c.count([]any{not}, v, at)
		if err != nil {
			return err
		}
		if n == 1 {
			return mismatch(at, "matches the schema in not")
		}
	}
	return c.conditional(m, v, at)
}

func (c *check) conditional(m map[string]any, v any, at string) error {
	condition, given := m["if"]
	if !given {
		return nil
	}
	n, err := c.count([]any{condition}, v, at)
	if err != nil {
		return err
	}
	branch, given := m["then"]
	if n == 0 {
		branch, given = m["else"]
	}
	if !given {
		return nil
	}
	return c.value(branch, v, at)
}

// count returns how many schemas a value matches. The error is [ErrWork].
func (c *check) count(schemas []any, v any, at string) (n int, err error) {
	for _, one := range schemas {
		switch err := c.value(one, v, at); {
		case err == nil:
			n++
		case errors.Is(err, ErrWork):
			return n, err
		}
	}
	return n, nil
}

func list(v any) []any {
	items, _ := v.([]any)
	return items
}

// object compares the members of an object.
func (c *check) object(m, v map[string]any, at string) error {
	if err := c.spend(len(list(m["required"])) / itemsPerStep); err != nil {
		return err
	}
	for _, one := range list(m["required"]) {
		name, _ := one.(string)
		if _, has := v[name]; !has {
			return mismatch(at, "has no %.100q", name)
		}
	}
	if outside(m, "minProperties", "maxProperties", len(v)) {
		return mismatch(at, "has %d members", len(v))
	}
	properties, _ := m["properties"].(map[string]any)
	patterns, _ := m["patternProperties"].(map[string]any)
	for name, value := range v {
		if err := c.spend(1); err != nil {
			return err
		}
		place := join(at, name)
		if names, given := m["propertyNames"]; given {
			if err := c.value(names, name, place); err != nil {
				return err
			}
		}
		if err := c.member(m, properties, patterns, name, value, place); err != nil {
			return err
		}
	}
	return nil
}

// member compares one member with the schemas for its name, or with the one for other names.
func (c *check) member(m, properties, patterns map[string]any, name string, value any, at string) error {
	own, known := properties[name]
	if known {
		if err := c.value(own, value, at); err != nil {
			return err
		}
	}
	for pattern, schema := range patterns {
		matches, err := c.matches(pattern, name)
		if err != nil {
			return err
		}
		if matches {
			known = true
			if err := c.value(schema, value, at); err != nil {
				return err
			}
		}
	}
	if other, given := m["additionalProperties"]; given && !known {
		return c.value(other, value, at)
	}
	return nil
}

// array compares the items of an array.
func (c *check) array(m map[string]any, v []any, at string) error {
	if outside(m, "minItems", "maxItems", len(v)) {
		return mismatch(at, "has %d items", len(v))
	}
	first, rest := list(m["prefixItems"]), m["items"]
	if tuple, old := rest.([]any); old {
		first, rest = tuple, m["additionalItems"]
	}
	for i, item := range v {
		schema := rest
		if i < len(first) {
			schema = first[i]
		}
		if err := c.value(schema, item, join(at, strconv.Itoa(i))); err != nil {
			return err
		}
	}
	if m["uniqueItems"] != true {
		return nil
	}
	for i, item := range v {
		if slices.ContainsFunc(v[:i], func(o any) bool { return c.equal(o, item) }) {
			return mismatch(at, "has an item twice")
		}
		if c.steps > maxSteps {
			return ErrWork
		}
	}
	return nil
}

// outside reports whether a length is not within the limits of two keywords.
func outside(m map[string]any, least, most string, n int) bool {
	low, hasLow := m[least].(float64)
	high, hasHigh := m[most].(float64)
	return hasLow && float64(n) < low || hasHigh && float64(n) > high
}

func (c *check) text(m map[string]any, v, at string) error {
	if m["minLength"] != nil || m["maxLength"] != nil {
		if err := c.spend(len(v) / sizePerStep); err != nil {
			return err
		}
		if n := utf8.RuneCountInString(v); outside(m, "minLength", "maxLength", n) {
			return mismatch(at, "has %d characters", n)
		}
	}
	pattern, ok := m["pattern"].(string)
	if !ok {
		return nil
	}
	matches, err := c.matches(pattern, v)
	if err == nil && !matches {
		err = mismatch(at, "does not match the pattern")
	}
	return err
}

// number compares the limits of a number. In older drafts exclusiveMinimum and exclusiveMaximum are true or false.
func number(m map[string]any, v float64, at string) error {
	low, hasLow := m["minimum"].(float64)
	high, hasHigh := m["maximum"].(float64)
	above, hasAbove := m["exclusiveMinimum"].(float64)
	below, hasBelow := m["exclusiveMaximum"].(float64)
	switch of, ok := m["multipleOf"].(float64); {
	case hasLow && (v < low || v == low && m["exclusiveMinimum"] == true), hasAbove && v <= above:
		return mismatch(at, "is too small")
	case hasHigh && (v > high || v == high && m["exclusiveMaximum"] == true), hasBelow && v >= below:
		return mismatch(at, "is too large")
	case ok && of > 0 && math.Abs(math.Remainder(v, of)) > of*1e-9:
		return mismatch(at, "is no multiple of %v", of)
	}
	return nil
}

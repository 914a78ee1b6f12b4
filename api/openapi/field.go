package openapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"boxgate/api/strict"
)

// ofField returns the schema of a field: that of its type, extended by its tags. See [rest.Route].
func (s *schemas) ofField(f strict.Field) object {
	schema := s.schemaOf(f.Type)
	if text := f.Tag.Get("doc"); text != "" {
		schema["description"] = text
	}
	if text := f.Tag.Get("format"); text != "" {
		schema["format"] = text
	}
	if text := f.Tag.Get("enum"); text != "" {
		of := schema
		if items, ok := schema["items"].(object); ok {
			of = items
		}
		of["enum"] = strings.Fields(text)
	}
	s.bound(schema, "minimum", f, "min")
	s.bound(schema, "maximum", f, "max")
	if text, ok := f.Tag.Lookup("example"); ok {
		schema["examples"] = []any{s.example(f, text)}
	}
	return schema
}

// bound sets a bound of a number, or of the length of a string or array.
func (s *schemas) bound(schema object, keyword string, f strict.Field, tag string) {
	text, ok := f.Tag.Lookup(tag)
	if !ok {
		return
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		s.errors = append(s.errors, fmt.Sprintf("the tag %s of %s is not a number: %q", tag, f.Name, text))
	}
	switch schema["type"] {
	case "string":
		keyword = strings.TrimSuffix(keyword, "imum") + "Length"
	case "array":
		keyword = strings.TrimSuffix(keyword, "imum") + "Items"
	}
	schema[keyword] = n
}

// example parses the tag "example": text for a string, JSON for everything else.
func (s *schemas) example(f strict.Field, text string) any {
	t := f.Type
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.String || t == timeType {
		return text
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		s.errors = append(s.errors, fmt.Sprintf("the example of %s is not JSON: %v", f.Name, err))
	}
	return v
}

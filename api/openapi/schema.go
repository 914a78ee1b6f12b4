package openapi

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"boxgate/api/strict"
)

// inForms is implemented by types with their own JSON encoding. Forms returns types with the same encodings, for the
// document.
type inForms interface{ Forms() []reflect.Type }

// freeForm is implemented by types that accept any object.
type freeForm interface{ FreeForm() }

// named is implemented by types whose name in the document differs from the Go name.
type named interface{ SchemaName() string }

// enumerated is implemented by types with a fixed set of values.
type enumerated interface{ Enum() []string }

// schemas collects the JSON schemas of the structs of a document, by name.
type schemas struct {
	structs object
	types   map[string]reflect.Type
	errors  []string // errors: types and tags that cannot be described
}

func newSchemas() *schemas { return &schemas{structs: object{}, types: make(map[string]reflect.Type)} }

var (
	timeType      = reflect.TypeFor[time.Time]()
	rawType       = reflect.TypeFor[json.RawMessage]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
)

// schemaOf returns the JSON schema of a Go type. Structs are referenced by name.
func (s *schemas) schemaOf(t reflect.Type) object {
	switch {
	case t.Kind() == reflect.Pointer:
		return s.schemaOf(t.Elem())
	case t == timeType:
		return object{"type": "string", "format": "date-time"}
	case reflect.Zero(t).CanInterface() && isEnumerated(t) != nil:
		return object{"type": "string", "enum": isEnumerated(t)}
	case t.Kind() == reflect.Struct && isFreeForm(t):
		return object{"type": "object", "additionalProperties": true}
	case t.Kind() == reflect.Struct && isExtended(t):
		return s.ofStruct(t)
	case (t.Kind() == reflect.Struct || t.Kind() == reflect.Uint64) && isInForms(t):
		return s.anyOf(reflect.Zero(t).Interface().(inForms).Forms())
	case t.Implements(textMarshaler), t.Kind() == reflect.String && t.Implements(jsonMarshaler): // text with custom escaping
		return object{"type": "string"}
	case t == rawType || t.Kind() == reflect.Interface || t.Implements(jsonMarshaler):
		s.errors = append(s.errors, fmt.Sprintf("%v has a JSON of its own: give it a method Forms() []reflect.Type that lists types of that form", t))
		return object{}
	}
	return s.ofKind(t)
}

// ofKind returns the schema of a type according to its kind.
func (s *schemas) ofKind(t reflect.Type) object {
	switch {
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return object{"type": "string", "contentEncoding": "base64"}
	case t.Kind() == reflect.Slice:
		return object{"type": "array", "items": s.schemaOf(t.Elem())}
	case t.Kind() == reflect.Map:
		return object{"type": "object", "additionalProperties": s.schemaOf(t.Elem())}
	case t.Kind() == reflect.Bool:
		return object{"type": "boolean"}
	case t.Kind() == reflect.Float64:
		return object{"type": "number"}
	case strict.IsInteger(t):
		return object{"type": "integer"}
	case t.Kind() == reflect.Struct:
		return s.ofStruct(t)
	}
	return object{"type": "string"}
}

func isEnumerated(t reflect.Type) []string {
	if e, ok := reflect.Zero(t).Interface().(enumerated); ok {
		return e.Enum()
	}
	return nil
}

func isFreeForm(t reflect.Type) bool {
	_, ok := reflect.Zero(t).Interface().(freeForm)
	return ok
}

func isExtended(t reflect.Type) bool {
	_, ok := reflect.Zero(t).Interface().(strict.Extended)
	return ok
}

func isInForms(t reflect.Type) bool {
	_, ok := reflect.Zero(t).Interface().(inForms)
	return ok
}

func (s *schemas) ofStruct(t reflect.Type) object {
	name := t.Name()
	if n, ok := reflect.Zero(t).Interface().(named); ok {
		name = n.SchemaName()
	}
	ref := object{"$ref": "#/components/schemas/" + name}
	if known, ok := s.types[name]; ok {
		if known != t {
			s.errors = append(s.errors, fmt.Sprintf("several types go by the name %s: give one a method SchemaName", name))
		}
		return ref
	}
	schema := object{"type": "object", "additionalProperties": false}
	s.structs[name], s.types[name] = schema, t // before its fields, which may refer to it
	properties := object{}
	required := []string{}
	for _, f := range strict.FieldsOf(t) {
		properties[f.Name] = s.ofField(f)
		if f.Required {
			required = append(required, f.Name)
		}
	}
	schema["properties"] = properties
	if len(required) > 0 {
		schema["required"] = required
	}
	return ref
}

func (s *schemas) anyOf(forms []reflect.Type) object {
	var all []object
	for _, t := range forms {
		all = append(all, s.schemaOf(t))
	}
	if len(all) == 1 {
		return all[0]
	}
	return object{"anyOf": all}
}

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

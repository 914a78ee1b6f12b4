package openapi

import (
	"reflect"

	"boxgate/api/strict"
)

// inForms is implemented by types that read their own JSON: the description has the types that describe its forms.
type inForms interface{ Forms() []reflect.Type }

// named is implemented by types whose name in the description is not that in Go.
type named interface{ SchemaName() string }

// schemas are the JSON schemas of the structs of a description, by their names there.
type schemas struct {
	structs object
	types   map[string]reflect.Type
	clashes []string // names that several types go by
}

func newSchemas() *schemas { return &schemas{structs: object{}, types: make(map[string]reflect.Type)} }

// of is the JSON schema of a Go type. A struct is referred to by its name.
func (s *schemas) of(t reflect.Type) object {
	switch {
	case t.Kind() == reflect.Pointer:
		return s.of(t.Elem())
	case t.Kind() == reflect.Slice:
		return object{"type": "array", "items": s.of(t.Elem())}
	case t.Kind() == reflect.Map:
		return object{"type": "object", "additionalProperties": s.of(t.Elem())}
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

func (s *schemas) ofStruct(t reflect.Type) object {
	if read, ok := reflect.Zero(t).Interface().(inForms); ok {
		return s.anyOf(read.Forms())
	}
	name := t.Name()
	if n, ok := reflect.Zero(t).Interface().(named); ok {
		name = n.SchemaName()
	}
	ref := object{"$ref": "#/components/schemas/" + name}
	if known, ok := s.types[name]; ok {
		if known != t {
			s.clashes = append(s.clashes, name)
		}
		return ref
	}
	schema := object{"type": "object", "additionalProperties": false}
	s.structs[name], s.types[name] = schema, t // before its fields, which may refer to it
	properties := object{}
	required := []string{}
	for _, f := range strict.FieldsOf(t) {
		property := s.of(f.Type)
		if f.Doc != "" {
			property["description"] = f.Doc
		}
		properties[f.Name] = property
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
		all = append(all, s.of(t))
	}
	if len(all) == 1 {
		return all[0]
	}
	return object{"anyOf": all}
}

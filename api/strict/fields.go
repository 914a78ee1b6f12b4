package strict

import (
	"reflect"
	"slices"
	"strings"
)

// Field is one JSON field of a struct.
type Field struct {
	Name     string
	Type     reflect.Type
	Required bool  // always present in a response, whatever its value
	Index    []int // of the field, for reflect.Value.FieldByIndex
	Tag      reflect.StructTag
}

// FieldsOf lists the fields of a struct type that have a json tag, including fields of embedded structs, and the members
// of an [Extended] type, which have no Index.
func FieldsOf(t reflect.Type) []Field {
	var fields []Field
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			for _, inner := range FieldsOf(f.Type) {
				inner.Index = slices.Concat(f.Index, inner.Index)
				fields = append(fields, inner)
			}
		case name != "" && name != "-":
			fields = append(fields, Field{name, f.Type, !strings.Contains(options, "omit"), f.Index, f.Tag})
		}
	}
	if e, ok := reflect.Zero(t).Interface().(Extended); ok {
		for _, f := range e.Members() {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if slices.ContainsFunc(fields, func(f Field) bool { return f.Name == name }) { // already listed by an embedded struct
				continue
			}
			fields = append(fields, Field{name, f.Type, !strings.Contains(options, "omit"), nil, f.Tag})
		}
	}
	return fields
}

// Extended is implemented by structs that encode more JSON members than they have fields.
type Extended interface{ Members() []reflect.StructField }

// nearest returns the field whose name differs only in case and separators, or "".
func nearest(key string, fields []Field) string {
	plain := strings.NewReplacer("_", "", "-", "")
	want := strings.ToLower(plain.Replace(key))
	for _, f := range fields {
		if plain.Replace(f.Name) == want {
			return f.Name
		}
	}
	return ""
}

package policytest

import (
	"encoding/json"
	"fmt"
	"reflect"

	"boxgate/policy"
)

// Variants returns for each field of a policy, however deep, two policies that differ from the zero policy in that field only. They
// differ from each other too, unless the field has only one other value. For tests that no field is forgotten; most of the
// policies are not valid.
func Variants() map[string][2]policy.Spec {
	all := map[string][2]policy.Spec{}
	leaves(reflect.TypeFor[policy.Spec](), "", func(path string, set func(reflect.Value, int)) {
		var pair [2]policy.Spec
		for i := range pair {
			set(reflect.ValueOf(&pair[i]).Elem(), i+1)
		}
		all[path] = pair
	})
	return all
}

// leaves calls visit with each field below a type that has no fields of its own. set gives it the n-th value.
func leaves(t reflect.Type, path string, visit func(path string, set func(v reflect.Value, n int))) {
	if t.Implements(reflect.TypeFor[json.Marshaler]()) || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]()) {
		return // its values are not free
	}
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() || f.Tag.Get("json") == "-" {
				continue
			}
			leaves(f.Type, path+"."+f.Name, func(path string, set func(reflect.Value, int)) {
				visit(path, func(v reflect.Value, n int) { set(v.Field(i), n) })
			})
		}
	case reflect.Pointer:
		leaves(t.Elem(), path, func(path string, set func(reflect.Value, int)) {
			visit(path, func(v reflect.Value, n int) { v.Set(reflect.New(t.Elem())); set(v.Elem(), n) })
		})
	case reflect.Slice:
		leaves(t.Elem(), path+"[]", func(path string, set func(reflect.Value, int)) {
			visit(path, func(v reflect.Value, n int) { v.Set(reflect.MakeSlice(t, 1, 1)); set(v.Index(0), n) })
		})
	case reflect.Map:
		leaves(t.Elem(), path+"{}", func(path string, set func(reflect.Value, int)) {
			visit(path, func(v reflect.Value, n int) {
				value := reflect.New(t.Elem()).Elem()
				set(value, n)
				v.Set(reflect.MakeMap(t))
				v.SetMapIndex(reflect.ValueOf("key").Convert(t.Key()), value)
			})
		})
	case reflect.String:
		visit(path, func(v reflect.Value, n int) { v.SetString(fmt.Sprint("value", n)) })
	case reflect.Bool:
		visit(path, func(v reflect.Value, _ int) { v.SetBool(true) })
	case reflect.Int, reflect.Int64:
		visit(path, func(v reflect.Value, n int) { v.SetInt(int64(n)) })
	case reflect.Uint16, reflect.Uint64:
		visit(path, func(v reflect.Value, n int) { v.SetUint(uint64(n)) })
	default:
		panic("no values for a field of type " + t.String() + " at " + path)
	}
}

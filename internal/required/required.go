// Package required checks that a struct made by code has every part that is needed, so that nothing is put together by halves.
package required

import (
	"fmt"
	"reflect"
)

// Fields returns an error that names the first field of a struct, or of what a pointer to one points to, that is nil, or an interface
// that holds nil. A field with the tag `required:"false"` may be nil; fields of types that cannot be nil, and slices, are not looked at.
func Fields(of any) error {
	v := reflect.Indirect(reflect.ValueOf(of))
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Tag.Get("required") == "false" {
			continue
		}
		if isNil(v.Field(i)) {
			return fmt.Errorf("%v needs %s", v.Type(), f.Name)
		}
	}
	return nil
}

func isNil(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Interface: // a part that was not made yet is a nil pointer in an interface that is not nil
		return v.IsNil() || isNil(v.Elem())
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Chan:
		return v.IsNil()
	}
	return false
}

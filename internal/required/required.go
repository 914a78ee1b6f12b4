// Package required checks that all needed fields of a struct are set, so that no component is half-wired.
package required

import (
	"fmt"
	"reflect"
)

// Fields returns an error that names the first nil field of a struct or pointer to a struct. An interface that holds a
// nil pointer counts as nil. Fields tagged `required:"false"`, slices, and types that cannot be nil are ignored.
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
	case reflect.Interface: // a component not created yet is a nil pointer in a non-nil interface
		return v.IsNil() || isNil(v.Elem())
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Chan:
		return v.IsNil()
	}
	return false
}

package h2

import (
	"net/http"
	"reflect"
)

// The library does not expose to handlers the number of their stream, nor whether the client waits for 100. Both are
// read from its unexported fields. Should those change, streams are reset with INTERNAL_ERROR, bodies are requested at
// once, and tests fail.

// StreamID returns the number of the stream that a handler serves, and false if it is unknown.
func StreamID(w http.ResponseWriter) (uint32, bool) {
	v := below(reflect.ValueOf(w), "rws", "stream", "id")
	if v.Kind() != reflect.Uint32 {
		return 0, false
	}
	return uint32(v.Uint()), true
}

// ExpectsContinue reports whether the client waits for a 100 before it sends the request's body.
func ExpectsContinue(r *http.Request) bool {
	v := below(reflect.ValueOf(r.Body), "needsContinue")
	return v.Kind() == reflect.Bool && v.Bool()
}

// below follows field names through structs and pointers; the result is invalid if one is missing.
func below(v reflect.Value, path ...string) reflect.Value {
	for _, name := range path {
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct {
			return reflect.Value{}
		}
		v = v.FieldByName(name)
	}
	return v
}

package rest

import (
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"

	"boxgate/api/problem"
	"boxgate/api/strict"
)

// queryNames lists the query parameters of a route.
func queryNames(t reflect.Type) []string {
	if t == nil {
		return nil
	}
	var names []string
	for _, f := range strict.FieldsOf(t) {
		names = append(names, f.Name)
	}
	return names
}

// onlyQuery rejects unknown and repeated query parameters, and queries that cannot be parsed. Unknown input is never
// ignored.
func onlyQuery(r *http.Request, known []string) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return problem.Refuse(http.StatusUnprocessableEntity, "the query cannot be parsed; write it as name=value, joined by &")
	}
	for name, values := range query {
		if !slices.Contains(known, name) {
			return problem.Refuse(http.StatusUnprocessableEntity, "unknown query parameter %q", problem.Clip(name))
		}
		if len(values) > 1 {
			return problem.Refuse(http.StatusUnprocessableEntity, "query parameter %q is given twice", problem.Clip(name))
		}
	}
	return nil
}

// Query parses the query of a request into v, a pointer to the struct given as the Query of the route. Its fields are
// strings, booleans or integers, or pointers to them, which stay nil if the parameter is absent. An empty parameter
// counts as absent.
func Query(r *http.Request, v any) error {
	query, into := r.URL.Query(), reflect.ValueOf(v).Elem()
	for _, f := range strict.FieldsOf(into.Type()) {
		text := query.Get(f.Name)
		if text == "" {
			continue
		}
		field := into.FieldByIndex(f.Index)
		if field.Kind() == reflect.Pointer {
			field.Set(reflect.New(field.Type().Elem()))
			field = field.Elem()
		}
		if want := setParameter(field, text); want != "" {
			return problem.Refuse(http.StatusUnprocessableEntity, "query parameter %q must be %s", f.Name, want)
		}
	}
	return nil
}

// setParameter parses text into a field. If that fails, it returns a description of valid values.
func setParameter(field reflect.Value, text string) string {
	switch {
	case field.Kind() == reflect.Bool:
		value, err := strconv.ParseBool(text)
		if err != nil {
			return "true or false"
		}
		field.SetBool(value)
	case strict.IsInteger(field.Type()):
		value, err := strconv.ParseInt(text, 10, 64)
		if err != nil || value < 0 {
			return "a whole number"
		}
		if field.OverflowInt(value) {
			return "a smaller number"
		}
		field.SetInt(value)
	default:
		field.SetString(text)
	}
	return ""
}

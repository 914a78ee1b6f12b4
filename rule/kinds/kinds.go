// Package kinds lists all kinds of rules. A new one is a folder beside this one, and a line here.
package kinds

import (
	"reflect"

	"boxgate/rule"
	"boxgate/rule/response"
)

// All are the kinds in the order of their keys.
var All = []rule.Kind{
	response.Kind{},
}

// Members returns the document members of all kinds as struct fields, for the description of the API.
func Members() []reflect.StructField {
	fields := make([]reflect.StructField, 0, len(All))
	for _, k := range All {
		tag := reflect.StructTag(`json:"` + k.Key() + `,omitempty" doc:"` + k.Doc() + `"`)
		fields = append(fields, reflect.StructField{Name: k.Key(), Type: k.Form(), Tag: tag})
	}
	return fields
}

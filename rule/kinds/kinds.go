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

// Members are the members of a rule's document that kinds read, as fields of a struct for the description of the API.
func Members() []reflect.StructField {
	fields := make([]reflect.StructField, 0, len(All))
	for _, k := range All {
		tag := reflect.StructTag(`json:"` + k.Key() + `,omitempty" doc:"` + k.Doc() + `"`)
		fields = append(fields, reflect.StructField{Name: k.Key(), Type: k.Form(), Tag: tag})
	}
	return fields
}

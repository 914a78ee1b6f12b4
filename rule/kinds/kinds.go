// Package kinds lists all kinds of rules. A new one is a folder beside this one, and a line here.
package kinds

import (
	"reflect"
	"strconv"

	"boxgate/rule"
	"boxgate/rule/clientcert"
	"boxgate/rule/forward"
	"boxgate/rule/response"
)

// All are the kinds in the order of their keys.
var All = []rule.Kind{
	clientcert.Kind{},
	forward.Kind{},
	response.Kind{},
}

// Members returns the members of a rule's document that kinds read, for the description of the API.
func Members() []reflect.StructField {
	return members(func(k rule.Kind) (reflect.Type, string) { return k.Form(), k.Doc() })
}

// Views returns the members of a rule as it is shown.
func Views() []reflect.StructField {
	return members(func(k rule.Kind) (reflect.Type, string) {
		if v, ok := k.(rule.Viewed); ok {
			return v.View()
		}
		return k.Form(), k.Doc()
	})
}

func members(of func(rule.Kind) (form reflect.Type, doc string)) []reflect.StructField {
	fields := make([]reflect.StructField, 0, len(All))
	for _, k := range All {
		form, doc := of(k)
		tag := reflect.StructTag(`json:"` + k.Key() + `,omitempty"`)
		if doc != "" {
			tag += reflect.StructTag(" doc:" + strconv.Quote(doc))
		}
		fields = append(fields, reflect.StructField{Name: k.Key(), Type: form, Tag: tag})
	}
	return fields
}

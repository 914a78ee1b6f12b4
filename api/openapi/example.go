package openapi

import (
	"reflect"

	"boxgate/api/rest"
	"boxgate/api/strict"
)

// exampleFaults lists the mistakes in the example of a request.
func exampleFaults(rt rest.Route) []string {
	switch {
	case rt.Request == nil && rt.Example != "":
		return []string{"Example is set, but the route has no Request"}
	case rt.Request == nil || rt.Consumes != "":
		return nil
	case rt.Example == "":
		return []string{"no example: set Example to a JSON body that the route accepts"}
	}
	if err := strict.Unmarshal([]byte(rt.Example), reflect.New(rt.Request).Interface()); err != nil {
		return []string{"the example is refused: " + err.Error()}
	}
	return nil
}

package openapi

import (
	"reflect"
	"strings"
	"testing"

	"boxgate/api/rest"
)

type view struct {
	A string `json:"a"`
}

// TestNamesOfSchemasAreUnique: types of two packages with the same name must not share a schema.
func TestNamesOfSchemasAreUnique(t *testing.T) {
	t.Parallel()
	other := func() reflect.Type {
		type view struct {
			B string `json:"b"`
		}
		return reflect.TypeFor[view]()
	}()
	routes := []rest.Route{
		{Method: "GET", Path: "/one", Response: reflect.TypeFor[view]()},
		{Method: "GET", Path: "/same", Response: reflect.TypeFor[[]view]()},
	}
	if _, err := Describe([]Subject{{Routes: routes}}); err != nil {
		t.Errorf("one type at two routes: %v", err)
	}
	routes = append(routes, rest.Route{Method: "GET", Path: "/two", Response: other})
	if _, err := Describe([]Subject{{Routes: routes}}); err == nil || !strings.Contains(err.Error(), "view") {
		t.Errorf("two types of one name: %v", err)
	}
}

package openapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"boxgate/api/problem"
	"boxgate/api/rest"
)

// object is a JSON object of the description.
type object = map[string]any

var pathParam = regexp.MustCompile(`\{(\w+)\}`)

// Describe writes the OpenAPI 3.1 description of the routes from the types they decode and encode.
func Describe(routes []rest.Route) ([]byte, error) {
	s := newSchemas()
	paths := object{}
	for _, rt := range routes {
		item, _ := paths[rt.Path].(object)
		if item == nil {
			item = object{}
			paths[rt.Path] = item
		}
		item[strings.ToLower(rt.Method)] = operation(rt, s)
	}
	if len(s.clashes) > 0 {
		return nil, fmt.Errorf("openapi: several types go by the name %s", strings.Join(s.clashes, ", "))
	}
	return json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "boxgate admin API", "version": "2",
			"description": "Boxes, what they may reach, the headers set for them and their public URLs.",
		},
		"security": []object{{"key": []string{}}, {"bearer": []string{}}},
		"paths":    paths,
		"components": object{
			"schemas": s.structs,
			"securitySchemes": object{
				"key":    object{"type": "apiKey", "in": "header", "name": "X-Box-Api-Key"},
				"bearer": object{"type": "http", "scheme": "bearer"},
			},
		},
	}, "", "  ")
}

func operation(rt rest.Route, s *schemas) object {
	success := object{"description": "done"}
	if rt.Response != nil {
		success["content"] = object{"application/json": object{"schema": s.of(rt.Response)}}
	} else if len(rt.Produces) > 0 {
		content := object{}
		for _, media := range rt.Produces {
			content[media] = object{}
		}
		success["content"] = content
	}
	failure := object{"description": "refused", "content": object{"application/json": object{"schema": s.of(reflect.TypeFor[problem.Body]())}}}
	op := object{
		"summary":   rt.Summary,
		"responses": object{strconv.Itoa(max(rt.Status, 200)): success, "default": failure},
	}
	if params := parameters(rt); len(params) > 0 {
		op["parameters"] = params
	}
	if rt.Request != nil {
		op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": s.of(rt.Request)}}}
	}
	if rt.Public {
		op["security"] = []object{}
	}
	return op
}

func parameters(rt rest.Route) []object {
	var params []object
	for _, m := range pathParam.FindAllStringSubmatch(rt.Path, -1) {
		params = append(params, object{"name": m[1], "in": "path", "required": true, "schema": object{"type": "string"}})
	}
	for _, name := range rt.Query {
		params = append(params, object{"name": name, "in": "query", "schema": object{"type": "string"}})
	}
	return params
}

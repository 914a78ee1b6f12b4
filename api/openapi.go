package api

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// object is a JSON object of the description.
type object = map[string]any

var pathParam = regexp.MustCompile(`\{(\w+)\}`)

// describe writes the OpenAPI 3.1 description of the routes from the types they decode and encode.
func describe(routes []route) ([]byte, error) {
	schemas := object{}
	paths := object{}
	for _, rt := range routes {
		item, _ := paths[rt.path].(object)
		if item == nil {
			item = object{}
			paths[rt.path] = item
		}
		item[strings.ToLower(rt.method)] = operation(rt, schemas)
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
			"schemas": schemas,
			"securitySchemes": object{
				"key":    object{"type": "apiKey", "in": "header", "name": "X-Box-Api-Key"},
				"bearer": object{"type": "http", "scheme": "bearer"},
			},
		},
	}, "", "  ")
}

func operation(rt route, schemas object) object {
	success := object{"description": "done"}
	if rt.response != nil {
		success["content"] = object{"application/json": object{"schema": schemaOf(rt.response, schemas)}}
	} else if len(rt.produces) > 0 {
		content := object{}
		for _, media := range rt.produces {
			content[media] = object{}
		}
		success["content"] = content
	}
	failure := object{"description": "refused", "content": object{"application/json": object{"schema": schemaOf(reflect.TypeFor[errorBody](), schemas)}}}
	op := object{
		"summary":   rt.summary,
		"responses": object{strconv.Itoa(max(rt.status, 200)): success, "default": failure},
	}
	if params := parameters(rt); len(params) > 0 {
		op["parameters"] = params
	}
	if rt.request != nil {
		op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": schemaOf(rt.request, schemas)}}}
	}
	if isHealth(rt.method + " " + rt.path) {
		op["security"] = []object{}
	}
	return op
}

func parameters(rt route) []object {
	var params []object
	for _, m := range pathParam.FindAllStringSubmatch(rt.path, -1) {
		params = append(params, object{"name": m[1], "in": "path", "required": true, "schema": object{"type": "string"}})
	}
	for _, name := range rt.query {
		params = append(params, object{"name": name, "in": "query", "schema": object{"type": "string"}})
	}
	return params
}

// schemaOf is the JSON schema of a Go type. Structs go into schemas under their name and are referenced.
func schemaOf(t reflect.Type, schemas object) object {
	if t == rawType {
		return schemaOf(reflect.TypeFor[policyBody](), schemas)
	}
	if t == headersType {
		compact := schemaOf(reflect.TypeFor[map[string]string](), schemas)
		full := schemaOf(reflect.TypeFor[headerEntryBody](), schemas)
		return object{"type": "object", "additionalProperties": object{"anyOf": []object{compact, full}}}
	}
	if t == reflect.TypeFor[headerValueBody]() {
		return object{"anyOf": []object{{"type": "string"}, structSchema(t, schemas)}}
	}
	switch {
	case t.Kind() == reflect.Pointer:
		return schemaOf(t.Elem(), schemas)
	case t.Kind() == reflect.Slice:
		return object{"type": "array", "items": schemaOf(t.Elem(), schemas)}
	case t.Kind() == reflect.Map:
		return object{"type": "object", "additionalProperties": schemaOf(t.Elem(), schemas)}
	case t.Kind() == reflect.Bool:
		return object{"type": "boolean"}
	case t.Kind() == reflect.Float64:
		return object{"type": "number"}
	case isInteger(t):
		return object{"type": "integer"}
	case t.Kind() == reflect.Struct:
		return structSchema(t, schemas)
	}
	return object{"type": "string"}
}

func structSchema(t reflect.Type, schemas object) object {
	name := t.Name()
	ref := object{"$ref": "#/components/schemas/" + name}
	if _, known := schemas[name]; known {
		return ref
	}
	schema := object{"type": "object", "additionalProperties": false}
	schemas[name] = schema
	properties := object{}
	required := []string{}
	for _, f := range jsonFields(t) {
		property := schemaOf(f.typ, schemas)
		if f.doc != "" {
			property["description"] = f.doc
		}
		properties[f.name] = property
		if f.required {
			required = append(required, f.name)
		}
	}
	schema["properties"] = properties
	if len(required) > 0 {
		schema["required"] = required
	}
	return ref
}

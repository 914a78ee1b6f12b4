// Package openapi generates the OpenAPI 3.1 document of the API from its routes and the types they decode and encode.
package openapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/strict"
)

// object is a JSON object of the document.
type object = map[string]any

var pathParam = regexp.MustCompile(`\{(\w+)\}`)

// Subject is a group of routes about one subject.
type Subject struct {
	Name, Description string
	Routes            []rest.Route
}

// Describe generates the OpenAPI 3.1 document of the routes.
func Describe(subjects []Subject) ([]byte, error) {
	s := newSchemas()
	paths := object{}
	var tags []object
	for _, subject := range subjects {
		tags = append(tags, object{"name": subject.Name, "description": subject.Description})
		for _, rt := range subject.Routes {
			item, _ := paths[rt.Path].(object)
			if item == nil {
				item = object{}
				paths[rt.Path] = item
			}
			item[strings.ToLower(rt.Method)] = operation(rt, subject.Name, s)
		}
	}
	if len(s.errors) > 0 {
		return nil, errors.New("openapi: " + strings.Join(s.errors, "; "))
	}
	return json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "boxgate admin API", "version": "2",
			"description": "Boxes, their network policies, header rules and public URLs.",
			"license":     object{"name": "Apache 2.0", "identifier": "Apache-2.0"},
		},
		"servers":  []object{{"url": "http://127.0.0.1:8600", "description": "The default of admin.listen"}},
		"tags":     tags,
		"security": []object{{"key": []string{}}, {"bearer": []string{}}},
		"paths":    paths,
		"components": object{
			"schemas": s.structs,
			"securitySchemes": object{
				"key":    object{"type": "apiKey", "in": "header", "name": api.KeyHeader},
				"bearer": object{"type": "http", "scheme": "bearer"},
			},
		},
	}, "", "  ")
}

func operation(rt rest.Route, tag string, s *schemas) object {
	op := object{"operationId": rt.ID, "summary": rt.Summary, "tags": []string{tag}, "responses": responses(rt, s)}
	if params := parameters(rt, s); len(params) > 0 {
		op["parameters"] = params
	}
	if body := requestBody(rt, s); body != nil {
		op["requestBody"] = body
	}
	if rt.Public {
		op["security"] = []object{}
	}
	return op
}

func requestBody(rt rest.Route, s *schemas) object {
	switch {
	case rt.Request == nil && rt.Consumes == "":
		return nil
	case rt.Request == nil:
		return object{"required": true, "content": object{rt.Consumes: object{"schema": object{"type": "string"}}}}
	}
	media := "application/json"
	if rt.Consumes != "" {
		media = rt.Consumes
	}
	content := object{"schema": s.schemaOf(rt.Request)}
	if rt.Example != "" {
		content["example"] = json.RawMessage(rt.Example)
	}
	return object{"required": true, "content": object{media: content}}
}

// pathDocs describes the variables in paths.
var pathDocs = map[string]string{
	"id":      "ID or name of a box",
	"port":    "a port of the box",
	"run":     "ID of a run",
	"pid":     "ID of a process in the box",
	"version": "number of a version of the policy, as policy_version in decisions",

	"host":     "ID of a host of the fleet",
	"snapshot": "ID of a snapshot",
	"name":     "name of a secret of the configuration",
	"secret":   "name of a secret of the calling API key, or ID of a secret of an API key",

	"api_key":    "ID or name of an API key",
	"ssh_key":    "ID of a public key",
	"schedule":   "ID of a schedule",
	"approval":   "ID of a request for access",
	"key":        "name of an environment variable",
	"label":      "a label of the box",
	"owner":      "owner of the skill's repository",
	"repository": "the skill's repository",
	"skill":      "name of the skill in its repository",
}

func parameters(rt rest.Route, s *schemas) []object {
	var params []object
	for _, m := range pathParam.FindAllStringSubmatch(rt.Path, -1) {
		p := object{"name": m[1], "in": "path", "required": true, "schema": object{"type": "string"}}
		if text := pathDocs[m[1]]; text != "" {
			p["description"] = text
		}
		params = append(params, p)
	}
	if rt.Query != nil {
		for _, f := range strict.FieldsOf(rt.Query) {
			params = append(params, queryParameter(f, s))
		}
	}
	if rt.Versioned && Changes(rt) {
		params = append(params, object{
			"name": "If-Match", "in": "header", "required": false, "schema": object{"type": "string", "examples": []string{`"3"`}},
			"description": "the ETag of the version to replace; if it is not the current one, no change is made and the response is 412",
		})
	}
	return params
}

func queryParameter(f strict.Field, s *schemas) object {
	schema := s.ofField(f)
	p := object{"name": f.Name, "in": "query", "required": f.Required, "schema": schema}
	if text, ok := schema["description"]; ok {
		p["description"] = text
		delete(schema, "description")
	}
	return p
}

// Changes reports whether a route changes state.
func Changes(rt rest.Route) bool { return rt.Method != http.MethodGet && rt.Method != http.MethodHead }

var operationID = regexp.MustCompile(`^[a-z]+([A-Z][a-z0-9]*)*$`)

// Missing checks that routes contain everything for the document. It returns one sentence for each omission.
func Missing(routes []rest.Route) []string {
	var lacks []string
	var ids []string
	for _, rt := range routes {
		add := func(format string, args ...any) {
			lacks = append(lacks, rt.Pattern()+": "+fmt.Sprintf(format, args...))
		}
		switch {
		case rt.ID == "":
			add("no operation ID: set ID to a verb and what it acts on, such as createBox")
		case !operationID.MatchString(rt.ID):
			add("the operation ID %q is not written like createBox", rt.ID)
		case slices.Contains(ids, rt.ID):
			add("another route has the operation ID %s", rt.ID)
		}
		ids = append(ids, rt.ID)
		if rt.Summary == "" || strings.HasSuffix(rt.Summary, ".") {
			add("Summary must be a phrase without a full stop")
		}
		if rt.Response == nil && len(rt.Produces) == 0 && !rt.Refused && rt.Status != http.StatusSwitchingProtocols {
			add("no response type: set Response to the type of the JSON answer, or Produces to the media types of another, or Refused if every request is answered with 501")
		}
		for _, fault := range exampleFaults(rt) {
			add("%s", fault)
		}
		for _, m := range pathParam.FindAllStringSubmatch(rt.Path, -1) {
			if pathDocs[m[1]] == "" {
				add("{%s} is not described in pathDocs (api/openapi)", m[1])
			}
		}
	}
	return lacks
}

// responses returns the responses of a route, by status.
func responses(rt rest.Route, s *schemas) object {
	all := object{"default": failure("The request failed; error contains the reason", s)}
	if !rt.Refused {
		all[strconv.Itoa(max(rt.Status, http.StatusOK))] = success(rt, s)
	}
	add := func(when bool, status int, text string) {
		if when {
			all[strconv.Itoa(status)] = failure(text, s)
		}
	}
	add(!rt.Public, http.StatusUnauthorized, "No API key, or a wrong one")
	add(strings.Contains(rt.Path, "{"), http.StatusNotFound, "An object in the path does not exist")
	add(rt.Versioned && Changes(rt), http.StatusPreconditionFailed, "The current version is not the one in If-Match; no change was made")
	add(true, http.StatusUnprocessableEntity, "A field or parameter is unknown, or its value is not supported; pointer identifies it")
	add(rt.Refused, http.StatusNotImplemented, "Not supported by this gateway; error contains an alternative")
	return all
}

func success(rt rest.Route, s *schemas) object {
	if rt.Status == http.StatusSwitchingProtocols {
		return object{"description": "The connection is upgraded to a WebSocket"}
	}
	answer := object{"description": "Done"}
	if content := content(rt, s); content != nil {
		answer["content"] = content
	}
	if rt.Versioned {
		answer["headers"] = object{"ETag": object{
			"description": "the version, for If-Match", "schema": object{"type": "string", "examples": []string{`"3"`}},
		}}
	}
	return answer
}

func content(rt rest.Route, s *schemas) object {
	all := object{}
	if rt.Response != nil {
		all["application/json"] = object{"schema": s.schemaOf(rt.Response)}
	}
	for _, media := range rt.Produces {
		all[media] = object{"schema": s.ofMedia(media, rt.Items)}
	}
	return all
}

// ofMedia returns the schema of a response that is not JSON: that of a line if each line is JSON, or else text or bytes.
func (s *schemas) ofMedia(media string, items []reflect.Type) object {
	switch {
	case strings.HasSuffix(media, "ndjson") && len(items) > 0:
		schema := s.anyOf(items)
		schema["description"] = "of each line"
		return schema
	case strings.HasPrefix(media, "text/event-stream"):
		return object{"type": "string", "description": "server-sent events; the data of each is JSON"}
	case strings.HasPrefix(media, "text/"), media == "application/x-pem-file":
		return object{"type": "string"}
	case media == "application/json":
		return object{"type": "object"}
	}
	return object{"type": "string", "format": "binary"}
}

func failure(text string, s *schemas) object {
	return object{"description": text, "content": object{"application/json": object{"schema": s.schemaOf(reflect.TypeFor[problem.Body]())}}}
}

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

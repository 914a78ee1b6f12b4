package openapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"boxgate/api"
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
	"id":   "ID or name of a box",
	"port": "a port of the box",
	"run":  "ID of a run",

	"snapshot": "ID of a snapshot",
	"name":     "name of a secret of the configuration",

	"api_key":    "ID or name of an API key",
	"schedule":   "ID of a schedule",
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

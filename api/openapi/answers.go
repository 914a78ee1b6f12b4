package openapi

import (
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"boxgate/api/problem"
	"boxgate/api/rest"
)

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

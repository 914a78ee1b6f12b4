package rest

import (
	"net/http"
	"reflect"
)

// Route is one endpoint: what /openapi.json says of it and what the mux serves come from the same row.
type Route struct {
	Method, Path string
	Summary      string
	Public       bool         // needs no key, and may be asked under any name: for probes
	Request      reflect.Type // of the JSON body, which goes by its json and doc tags; nil for none
	Response     reflect.Type // of the JSON answer; nil if it is not JSON
	Produces     []string     // media types of an answer that is not JSON
	Query        []string     // the parameters that it takes; any other is refused
	Status       int          // of success; 0: 200
	Handle       Handler
}

// Handler serves a request: it returns what to answer, or an error, which problem.StatusOf turns into an answer.
type Handler func(w http.ResponseWriter, r *http.Request) (Reply, error)

// Pattern is the route in the words of [http.ServeMux].
func (rt Route) Pattern() string { return rt.Method + " " + rt.Path }

// Reply is the answer of a handler: a body sent as JSON, or nothing if the handler wrote the answer itself.
type Reply struct {
	Status  int // 0: 200
	Body    any
	Version uint64 // sent as ETag unless 0
	Written bool   // the handler has written the answer
}

// OK is the answer of calls that have nothing else to report.
type OK struct {
	OK bool `json:"ok"`
}

// SchemaName names the type in the description of the API.
func (OK) SchemaName() string { return "okView" }

// Done is the reply of calls that have nothing else to report.
func Done() Reply { return Reply{Body: OK{true}} }

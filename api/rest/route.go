package rest

import (
	"net/http"
	"reflect"

	"boxgate/policy"
)

// Route is one endpoint: what /openapi.json says of it and what the mux serves come from the same row. A test of
// api/server fails if a row lacks what the description needs.
//
// The types go by their json tags. Further tags on a field describe it: doc is a sentence, example a value, enum the
// values that there are (separated by spaces), min and max the bounds of a number, and format a format of JSON Schema.
type Route struct {
	Method, Path string
	ID           string // names the operation, as generated clients do: createBox
	Summary      string
	Public       bool           // needs no key, and may be asked under any name: for probes
	Request      reflect.Type   // of the JSON body; nil for none
	Example      string         // a request body; required where there is one
	Consumes     string         // the media type of a body that is not JSON; with a Request, that describes its parts
	Response     reflect.Type   // of the JSON answer; nil if it is not JSON
	Produces     []string       // media types of an answer that is not JSON
	Items        []reflect.Type // what the lines or events of such an answer are; empty if it is no stream of JSON
	Query        reflect.Type   // a struct of the parameters that it takes, as [Query] reads them; any other is refused
	Versioned    bool           // the answer has an ETag; a route that changes something takes it as If-Match
	Refused      bool           // every request is answered with 501
	Status       int            // of success; 0: 200
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
	Version uint64  // sent as ETag unless 0
	Written bool    // the handler has written the answer
	Change  *Change // for the audit trail
}

// OK is the answer of calls that have nothing else to report.
type OK struct {
	OK bool `json:"ok" example:"true"`
}

// SchemaName names the type in the description of the API.
func (OK) SchemaName() string { return "okView" }

// DoneWith is Done for a call about a box ("": none) that the audit trail has more to say of.
func DoneWith(box policy.BoxID, what any) Reply {
	r := Done()
	r.Change = &Change{Box: box, What: what}
	return r
}

// Done is the reply of calls that have nothing else to report.
func Done() Reply { return Reply{Body: OK{true}} }

package rest

import (
	"net/http"
	"reflect"

	"boxgate/policy"
)

// Route is one endpoint. /openapi.json and the mux are generated from the same row. A test of api/server fails if a row
// lacks information for the description.
//
// Types are encoded according to their json tags. Further tags describe a field: doc is a sentence, example a value, enum
// the possible values (separated by spaces), min and max the bounds of a number, and format a format of JSON Schema.
type Route struct {
	Method, Path string
	ID           string // the operationId, used by generated clients: createBox
	Summary      string
	Public       bool           // needs no key and accepts any Host header: for probes
	Request      reflect.Type   // of the JSON body; may be nil
	Example      string         // a request body; required with Request
	Consumes     string         // the media type of a body that is not JSON; Request then describes its parts
	Response     reflect.Type   // of the JSON response; nil if it is not JSON
	Produces     []string       // media types of a response that is not JSON
	Items        []reflect.Type // types of the lines or events of such a response; empty if it is not a JSON stream
	Query        reflect.Type   // a struct with the query parameters, as parsed by [Query]; others are refused
	Versioned    bool           // the response has an ETag, and a changing route accepts it as If-Match
	Refused      bool           // every request is answered with 501
	Status       int            // of a successful response; 0: 200
	Handle       Handler
}

// Handler serves a request. It returns the response, or an error, which problem.StatusOf converts to a response.
type Handler func(w http.ResponseWriter, r *http.Request) (Reply, error)

// Pattern returns the route as a pattern of [http.ServeMux].
func (rt Route) Pattern() string { return rt.Method + " " + rt.Path }

// Reply is the result of a handler: a body to send as JSON, unless the handler wrote the response itself.
type Reply struct {
	Status  int // 0: 200
	Body    any
	Version uint64  // sent as ETag unless 0
	Written bool    // the handler has written the response
	Change  *Change // for the audit trail
}

// OK is the response of calls without a result.
type OK struct {
	OK bool `json:"ok" example:"true"`
}

// SchemaName names the type in the description of the API.
func (OK) SchemaName() string { return "okView" }

// DoneWith is Done with a change for the audit trail. box may be empty.
func DoneWith(box policy.BoxID, what any) Reply {
	r := Done()
	r.Change = &Change{Box: box, What: what}
	return r
}

// Done is the reply of calls without a result.
func Done() Reply { return Reply{Body: OK{true}} }

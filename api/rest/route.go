// Package rest is the framework of the API's endpoints. A [Route] describes the requests and responses of an endpoint,
// its [Handler] returns a [Reply] or an error, and an [Answerer] writes either. The package also parses common parts of
// requests: the box in the path, and the version in If-Match.
package rest

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/strict"
	"boxgate/internal/lazyregexp"
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
	// Late returns the body for a failure that occurs after the status of success was sent to keep the connection alive. nil: the
	// connection breaks off. Readers of the body must not mistake it for a success.
	Late func(error) any
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
	Tag     string  // sent as ETag instead of Version unless "": of a resource with several versions
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

var boxName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// IsBoxName reports whether a box may have the name. Every ID is a valid name, too.
func IsBoxName(s string) bool { return boxName.MatchString(s) }

// Finder finds a box.
type Finder interface {
	// Box finds a box by its ID or name. The ID takes precedence.
	Box(ctx context.Context, idOrName string) (api.Box, error)
}

// Box finds the box given as {id} in the path of the request.
func Box(r *http.Request, boxes Finder) (api.Box, error) {
	return FindBox(r.Context(), boxes, r.PathValue("id"))
}

// FindBox finds a box by ID or name among the boxes that the caller's key may see. The error names the missing box, and
// is the same for a box that the key may not see.
func FindBox(ctx context.Context, boxes Finder, idOrName string) (api.Box, error) {
	if !IsBoxName(idOrName) {
		return api.Box{}, api.Errorf(api.ErrNotFound, "no box has the ID or name %q", problem.Clip(idOrName))
	}
	box, err := boxes.Box(ctx, idOrName)
	if err == nil && !api.CallerOf(ctx).Sees(box) {
		box, err = api.Box{}, api.ErrNotFound
	}
	if errors.Is(err, api.ErrNotFound) {
		return api.Box{}, api.Errorf(api.ErrNotFound, "no box has the ID or name %q", idOrName)
	}
	return box, err
}

// queryNames lists the query parameters of a route.
func queryNames(t reflect.Type) []string {
	if t == nil {
		return nil
	}
	var names []string
	for _, f := range strict.FieldsOf(t) {
		names = append(names, f.Name)
	}
	return names
}

// onlyQuery rejects unknown and repeated query parameters, and queries that cannot be parsed. Unknown input is never
// ignored.
func onlyQuery(r *http.Request, known []string) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return problem.Refuse(http.StatusUnprocessableEntity, "the query cannot be parsed; write it as name=value, joined by &")
	}
	for name, values := range query {
		if !slices.Contains(known, name) {
			return problem.Refuse(http.StatusUnprocessableEntity, "unknown query parameter %q", problem.Clip(name))
		}
		if len(values) > 1 {
			return problem.Refuse(http.StatusUnprocessableEntity, "query parameter %q is given twice", problem.Clip(name))
		}
	}
	return nil
}

// Query parses the query of a request into v, a pointer to the struct given as the Query of the route. Its fields are
// strings, booleans or integers, or pointers to them, which stay nil if the parameter is absent. An empty parameter
// counts as absent.
func Query(r *http.Request, v any) error {
	query, into := r.URL.Query(), reflect.ValueOf(v).Elem()
	for _, f := range strict.FieldsOf(into.Type()) {
		text := query.Get(f.Name)
		if text == "" {
			continue
		}
		field := into.FieldByIndex(f.Index)
		if field.Kind() == reflect.Pointer {
			field.Set(reflect.New(field.Type().Elem()))
			field = field.Elem()
		}
		if want := setParameter(field, text); want != "" {
			return problem.Refuse(http.StatusUnprocessableEntity, "query parameter %q must be %s", f.Name, want)
		}
	}
	return nil
}

// Window parses the query parameters since and until, whose dates are days in UTC. A window that can contain nothing is
// refused.
func Window(since, until string) (api.Window, error) {
	w, err := api.ParseWindow(since, until, [2]string{`query parameter "since"`, `query parameter "until"`}, time.Now().UTC())
	if err != nil {
		return w, problem.Refuse(http.StatusUnprocessableEntity, "%v", err)
	}
	return w, nil
}

// setParameter parses text into a field. If that fails, it returns a description of valid values.
func setParameter(field reflect.Value, text string) string {
	switch {
	case field.Kind() == reflect.Bool:
		value, err := strconv.ParseBool(text)
		if err != nil {
			return "true or false"
		}
		field.SetBool(value)
	case strict.IsInteger(field.Type()):
		value, err := strconv.ParseInt(text, 10, 64)
		if err != nil || value < 0 {
			return "a whole number"
		}
		if field.OverflowInt(value) {
			return "a smaller number"
		}
		field.SetInt(value)
	default:
		field.SetString(text)
	}
	return ""
}

// tag returns the entity tag of the reply without quotes (RFC 9110, section 8.8.3), or "" for a reply without one.
func (r Reply) tag() string {
	if r.Tag == "" && r.Version != 0 {
		return strconv.FormatUint(r.Version, 10)
	}
	return r.Tag
}

// IfMatchTag returns the entity tag in If-Match without quotes (RFC 9110, section 13.1.1), or "" if the header is absent or "*".
func IfMatchTag(r *http.Request) (string, error) {
	values := r.Header.Values("If-Match")
	if len(values) == 0 || len(values) == 1 && strings.TrimSpace(values[0]) == "*" {
		return "", nil
	}
	tag := strings.TrimSpace(values[0])
	if len(values) > 1 || len(tag) < 3 || tag[0] != '"' || tag[len(tag)-1] != '"' {
		return "", errTag()
	}
	return tag[1 : len(tag)-1], nil
}

func errTag() error {
	return problem.Refuse(http.StatusPreconditionFailed, `If-Match must be one ETag of this resource, such as "3"`)
}

// IfMatch returns the version in If-Match, or nil if the header is absent or "*". A tag that this API never issues matches no
// version: the precondition fails, but the request is not malformed.
func IfMatch(r *http.Request) (*uint64, error) {
	tag, err := IfMatchTag(r)
	if err != nil || tag == "" {
		return nil, err
	}
	version, err := strconv.ParseUint(tag, 10, 64)
	if err != nil {
		return nil, errTag()
	}
	return &version, nil
}

// Package response is the kind of rules that remove header fields from responses, so that a box does not see them:
//
//	{"response_headers": {"remove": ["Server", "X-Amz-Cf-Id"]}}
//
// They are removed from the final head, from interim ones (RFC 9110, 15.2) and from trailers (RFC 9110, 6.5).
package response

import (
	"encoding/json"
	"net/textproto"
	"reflect"
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/rule"
)

// Key is the member of a rule's document.
const Key = "response_headers"

// maxNames is the largest number of fields that a rule may remove.
const maxNames = 64

// Kind reads rules that remove fields of responses.
type Kind struct{}

// form is the JSON of the member.
type form struct {
	Remove []string `json:"remove" doc:"names of fields that the box is not sent"`
}

// SchemaName is the name of the form in the description of the API.
func (form) SchemaName() string { return "ResponseHeaders" }

// Key implements [rule.Kind].
func (Kind) Key() string { return Key }

// Doc implements [rule.Kind].
func (Kind) Doc() string { return "change the header fields of responses" }

// Form implements [rule.Kind].
func (Kind) Form() reflect.Type { return reflect.TypeFor[form]() }

// Example implements [rule.Kind].
func (Kind) Example() string { return `{"remove": ["Server", "X-Internal-Host"]}` }

// Parse implements [rule.Kind].
func (Kind) Parse(at string, v document.Value, c *rule.Context) rule.Effect {
	ps, before := &c.Problems, len(c.List)
	e := &effect{}
	v.Fields(at, `an object with "remove"`, ps, map[string]func(string, document.Value){
		"remove": func(at string, v document.Value) { e.names = parseNames(at, v, ps) },
	})
	if v.Kind == document.Object && !v.Has("remove") {
		ps.Add(at, `has no "remove"`)
	}
	if len(ps.List) > before {
		return nil
	}
	return e
}

func parseNames(at string, v document.Value, ps *document.Problems) []string {
	list := v.AsStrings(at, ps)
	if ps.TooMany(at, len(list), maxNames) {
		return nil
	}
	if v.Kind == document.List && len(list) == 0 {
		ps.Add(at, "is an empty list; name the fields to remove")
	}
	names := make([]string, 0, len(list))
	for i, n := range list {
		at, lower := document.Element(at, i), strings.ToLower(n)
		switch {
		case v.Items[i].Kind != document.Text:
		case n == "" || len(n) > 256 || strings.ContainsFunc(n, func(r rune) bool { return r > 127 || !name.IsToken(byte(r)) }):
			ps.Add(at, "%s is not the name of a header field", name.Quote(name.Shown(n, name.IsToken)))
		case kept(lower):
			ps.Add(at, "%s cannot be removed: without it the response cannot be read", name.Quote(n))
		case slices.Contains(names, lower):
			ps.Add(at, "%s is there twice", name.Quote(n))
		}
		names = append(names, lower)
	}
	return names
}

// kept reports whether a field, by its name in lower case, is needed to read the response: for the framing, coding or range of the body, the
// connection (RFC 9110, 7.6.1), the handshake of a WebSocket, the status of a gRPC call, or an authentication challenge.
func kept(lower string) bool {
	switch lower {
	case "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "content-encoding",
		"content-range", "grpc-status", "grpc-message", "grpc-encoding", "connect-content-encoding",
		"www-authenticate", "proxy-authenticate", "persistent-auth":
		return true
	}
	return strings.HasPrefix(lower, "sec-websocket-")
}

// Line implements [rule.Kind].
func (Kind) Line(shown json.RawMessage) string {
	var f form
	if json.Unmarshal(shown, &f) != nil {
		return ""
	}
	return "response: -" + strings.Join(f.Remove, " -")
}

// effect removes fields.
type effect struct {
	names []string // in lower case
}

// Key implements [rule.Effect].
func (*effect) Key() string { return Key }

// Document implements [rule.Effect].
func (e *effect) Document() any {
	f := form{Remove: make([]string, len(e.names))}
	for i, n := range e.names {
		f.Remove[i] = textproto.CanonicalMIMEHeaderKey(n)
	}
	return f
}

// Show implements [rule.Effect].
func (e *effect) Show() any { return e.Document() }

// Equal implements [rule.Effect].
func (e *effect) Equal(other rule.Effect) bool {
	o, ok := other.(*effect)
	return ok && slices.Equal(e.names, o.names)
}

// DropsResponseField implements [rule.ResponseHead].
func (e *effect) DropsResponseField(name string) bool { return slices.Contains(e.names, name) }

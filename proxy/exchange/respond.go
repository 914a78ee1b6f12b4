package exchange

import (
	"slices"
	"strings"

	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h1"
	"boxgate/rule"
)

// This file changes the heads of responses as the rule of their host requires.

// dropsField reports whether a field of a response is removed; the name is in lower case.
func (r *Decision) dropsField(name string) bool {
	return slices.ContainsFunc(r.header.OnRequests().Responses, func(h rule.ResponseHead) bool { return h.DropsResponseField(name) })
}

// ResponseFields returns the fields of a response's head, or trailers, to send to the client. It modifies the list.
func (r *Decision) ResponseFields(fields []h1.Field) []h1.Field {
	if len(r.header.OnRequests().Responses) == 0 {
		return fields
	}
	return slices.DeleteFunc(fields, func(f h1.Field) bool { return r.dropsField(strings.ToLower(string(f.Name))) })
}

// ResponseHTTP2 is [Decision.ResponseFields] for HTTP/2, where names are in lower case.
func (r *Decision) ResponseHTTP2(fields []hpack.HeaderField) []hpack.HeaderField {
	if len(r.header.OnRequests().Responses) == 0 {
		return fields
	}
	return slices.DeleteFunc(fields, func(f hpack.HeaderField) bool { return r.dropsField(f.Name) })
}

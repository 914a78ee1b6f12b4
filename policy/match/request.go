package match

import (
	"slices"
	"strings"

	"boxgate/policy/content"
)

// Request is a request for matchers, with the path as sent and resolved. It has no pointer to the original request, which would
// have to be allocated.
type Request struct {
	method, plain, clean, query string
	fields                      *Fields
	content                     *content.Content
	effort                      effort
}

// NewRequest returns a request for matchers. path is as sent, and query has no question mark. c is nil until the body has been read.
func NewRequest(method, path, query string, fields *Fields, c *content.Content) Request {
	if path == "" {
		path = "/"
	}
	return Request{method, path, resolvePath(path), query, fields, c, effort{fullEffort}}
}

// IsZero reports whether r is the zero Request.
func (r *Request) IsZero() bool { return r.plain == "" }

// IsAmbiguous reports whether servers may interpret the path differently.
func (r *Request) IsAmbiguous() bool { return IsAmbiguous(r.plain) }

// Conditions is a compiled [Match].
type Conditions struct {
	methods        []string
	path           *pathMatcher
	query, headers []pairMatcher
}

// pathMatcher compares a path as sent and resolved.
type pathMatcher struct{ sent, resolved textMatcher }

// pairMatcher is a compiled [Pair].
type pairMatcher struct {
	key, value textMatcher
	anyValue   bool
	folded     string // form of an exact key for servers that rewrite names
}

// Fit compares a request.
func (m *Conditions) Fit(r *Request) Fit {
	f := m.fitMethod(r.method)
	if m.path != nil && f > Unfit {
		f = min(f, m.path.fit(r))
	}
	for i := 0; i < len(m.query) && f > Unfit; i++ {
		f = min(f, m.query[i].fitQuery(r.query, &r.effort))
	}
	for i := 0; i < len(m.headers) && f > Unfit; i++ {
		f = min(f, m.headers[i].fitFields(r.fields, &r.effort))
	}
	return f
}

// fitMethod compares a method. Methods are case-sensitive (RFC 9110, 9.1), but some servers ignore that.
func (m *Conditions) fitMethod(method string) Fit {
	switch {
	case len(m.methods) == 0 || slices.Contains(m.methods, method):
		return Fits
	case slices.ContainsFunc(m.methods, func(s string) bool { return strings.EqualFold(s, method) }):
		return Unsure
	}
	return Unfit
}

func (m *pathMatcher) fit(r *Request) Fit {
	sent := m.sent.one(r.plain, &r.effort)
	resolved := sent
	if r.clean != r.plain || m.resolved.text != m.sent.text {
		resolved = m.resolved.one(r.clean, &r.effort)
	}
	return agreed(min(sent, resolved), max(sent, resolved))
}

// LooksAtPath reports whether the path matters.
func (m *Conditions) LooksAtPath() bool { return m != nil && m.path != nil }

// LooksAtQuery reports whether the query matters.
func (m *Conditions) LooksAtQuery() bool { return m != nil && len(m.query) > 0 }

// LooksAtFields reports whether header fields matter.
func (m *Conditions) LooksAtFields() bool { return m != nil && len(m.headers) > 0 }

// Needs returns the header fields that the matcher looks at.
func (m *Conditions) Needs() (n Needs) {
	if m == nil {
		return n
	}
	for i := range m.headers {
		if h := &m.headers[i]; h.key.exact {
			n.Add(Needs{names: []string{h.folded}})
		} else {
			n.all = true
		}
	}
	return n
}

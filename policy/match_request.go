package policy

import (
	"slices"
	"strings"
)

// Fields are the header fields of a request that matchers look at: those that are forwarded, under the names that
// [Compiled.Needs] asked for. A nil *Fields has none and knows of none.
type Fields struct {
	Needs *Needs
	List  []Field
}

// Field is one header field, as forwarded.
type Field struct{ Name, Value string }

// Needs are the names of the header fields that rules look at.
type Needs struct {
	all   bool     // some rule looks for names by a prefix or a regular expression
	names []string // folded, see foldHeader
}

// Wants reports whether rules look at fields of that name, in any variant of it.
func (n *Needs) Wants(name string) bool {
	return n != nil && (n.all || slices.Contains(n.names, foldHeader(name)))
}

// add adds what other asks for.
func (n *Needs) add(other Needs) {
	n.all = n.all || other.all
	for _, name := range other.names {
		if !slices.Contains(n.names, name) {
			n.names = append(n.names, name)
		}
	}
}

func (n *Needs) isZero() bool { return !n.all && len(n.names) == 0 }

// knows reports whether the fields that a matcher looks at are known.
func (f *Fields) knows(m *pairMatcher) bool {
	if f == nil || f.Needs == nil {
		return false
	}
	return f.Needs.all || m.key.exact && slices.Contains(f.Needs.names, m.folded)
}

// judged is a request as matchers see it: the path as sent and resolved. It holds no pointer to the request, which would
// be allocated then.
type judged struct {
	method, plain, clean, query string
	fields                      *Fields
	effort                      effort
}

// judge returns a request as matchers see it.
func judge(r *Request) judged {
	plain := r.Path
	if plain == "" {
		plain = "/"
	}
	return judged{r.Method, plain, resolvePath(plain), r.Query, r.Fields, effort{fullEffort}}
}

// requestMatcher is a [Match] ready to compare.
type requestMatcher struct {
	methods        []string
	path           *pathMatcher
	query, headers []pairMatcher
}

// pathMatcher compares a path as sent and resolved.
type pathMatcher struct{ sent, resolved textMatcher }

// pairMatcher is a [MatchPair] ready to compare.
type pairMatcher struct {
	key, value textMatcher
	anyValue   bool
	folded     string // of an exact key: what is compared where servers rewrite names
}

// fit compares a request.
func (m *requestMatcher) fit(r *judged) fit {
	f := m.fitMethod(r.method)
	if m.path != nil && f > unfit {
		f = min(f, m.path.fit(r))
	}
	for i := 0; i < len(m.query) && f > unfit; i++ {
		f = min(f, m.query[i].fitQuery(r.query, &r.effort))
	}
	for i := 0; i < len(m.headers) && f > unfit; i++ {
		f = min(f, m.headers[i].fitFields(r.fields, &r.effort))
	}
	return f
}

// fitMethod compares a method. Methods are case-sensitive (RFC 9110, 9.1), but some servers ignore that.
func (m *requestMatcher) fitMethod(method string) fit {
	switch {
	case len(m.methods) == 0 || slices.Contains(m.methods, method):
		return fits
	case slices.ContainsFunc(m.methods, func(s string) bool { return strings.EqualFold(s, method) }):
		return unsure
	}
	return unfit
}

func (m *pathMatcher) fit(r *judged) fit {
	sent := m.sent.one(r.plain, &r.effort)
	resolved := sent
	if r.clean != r.plain || m.resolved.text != m.sent.text {
		resolved = m.resolved.one(r.clean, &r.effort)
	}
	return agreed(min(sent, resolved), max(sent, resolved))
}

// looksAtFields reports whether header fields matter.
func (m *requestMatcher) looksAtFields() bool { return m != nil && len(m.headers) > 0 }

// needs returns the header fields that the matcher looks at.
func (m *requestMatcher) needs() (n Needs) {
	if m == nil {
		return n
	}
	for i := range m.headers {
		if h := &m.headers[i]; h.key.exact {
			n.add(Needs{names: []string{h.folded}})
		} else {
			n.all = true
		}
	}
	return n
}

// covers reports whether the fields that other asks for are among those asked for.
func (n *Needs) covers(other Needs) bool {
	if n == nil {
		return false
	}
	return n.all || !other.all && !slices.ContainsFunc(other.names, func(s string) bool { return !slices.Contains(n.names, s) })
}

package observe

import (
	"slices"
	"strings"
)

// Bounds of the names of one query. Longer ones are not kept.
const (
	maxParameters = 16
	maxParameter  = 48 // bytes of a name
)

// parameterNames returns the names of the parameters of a query, sorted and joined by "&". whole is false if they cannot be
// kept: there are too many, or one is long or no plain word, or has no "=", so that it may itself be a value, such as a token.
func parameterNames(query string) (names string, whole bool) {
	var p parameters
	if !p.read(query) {
		return "", false
	}
	return strings.Join(p.names[:p.n], "&"), true
}

// parameters are the names of the parameters of one query, sorted.
type parameters struct {
	names [maxParameters]string
	n     int
}

// read reads the names of a query, and reports whether they can be kept. It does not allocate.
func (p *parameters) read(query string) (whole bool) {
	for query != "" {
		var name string
		var valued bool
		name, valued, query = nextParameter(query)
		if p.n == maxParameters || !valued || !isPlainName(name) {
			return false
		}
		p.names[p.n] = name
		p.n++
	}
	slices.Sort(p.names[:p.n])
	return true
}

// are reports whether the names joined by "&" are a text.
func (p *parameters) are(text string) bool {
	for i, name := range p.names[:p.n] {
		if i > 0 {
			rest, found := strings.CutPrefix(text, "&")
			if !found {
				return false
			}
			text = rest
		}
		rest, found := strings.CutPrefix(text, name)
		if !found {
			return false
		}
		text = rest
	}
	return text == ""
}

// nextParameter returns the name of the first parameter, whether it has a value, and the parameters after it. Like some
// servers, it takes ";" for "&".
func nextParameter(query string) (name string, valued bool, rest string) {
	pair := query
	if i := strings.IndexAny(query, "&;"); i >= 0 {
		pair, rest = query[:i], query[i+1:]
	}
	name, _, valued = strings.Cut(pair, "=")
	return name, valued, rest
}

// isPlainName reports whether the name of a parameter may be kept.
func isPlainName(name string) bool {
	if name == "" || len(name) > maxParameter || shapeOfSegment(name) != name {
		return false
	}
	return !strings.ContainsFunc(name, func(c rune) bool {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		return !letter && !strings.ContainsRune("0123456789-_.[]$", c)
	})
}

// sameParameters reports whether two queries have the same names in the same order. It does not allocate.
func sameParameters(a, b string) bool {
	if a == b {
		return true
	}
	for a != "" && b != "" {
		var m, n string
		var p, q bool
		m, p, a = nextParameter(a)
		n, q, b = nextParameter(b)
		if m != n || p != q {
			return false
		}
	}
	return a == b
}

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
	if query == "" {
		return "", true
	}
	var list []string
	for query != "" {
		var name string
		var valued bool
		name, valued, query = nextParameter(query)
		if len(list) == maxParameters || !valued || !isPlainName(name) {
			return "", false
		}
		list = append(list, name)
	}
	slices.Sort(list)
	return strings.Join(list, "&"), true
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

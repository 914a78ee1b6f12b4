package match

import (
	"net/http"
	"reflect"
	"regexp/syntax"
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

func coversMethods(all, some []string) bool {
	return len(all) == 0 || len(some) > 0 && !slices.ContainsFunc(some, func(m string) bool { return !slices.Contains(all, m) })
}

func coversPaths(all, some []string) bool {
	return len(some) > 0 && !slices.ContainsFunc(some, func(path string) bool {
		return !slices.ContainsFunc(all, func(by string) bool {
			prefix, star := strings.CutSuffix(by, "*")
			return by == path || star && strings.HasPrefix(path, prefix)
		})
	})
}

// Covers reports whether one match certainly covers every request of another; nil covers every request.
func Covers(all, some *Match) bool {
	switch {
	case all == nil:
		return true
	case some == nil:
		return false
	}
	return coversMethods(all.Methods, some.Methods) && all.Path.coversAll(some.Path) &&
		coversPairs(all.Query, some.Query) && coversPairs(all.Headers, some.Headers) && all.MCP.covers(some.MCP) && all.GraphQL.covers(some.GraphQL)
}

// coversAll reports whether m certainly covers every text of another matcher; nil covers every text.
func (m *Matcher) coversAll(some *Matcher) bool {
	switch {
	case m == nil:
		return true
	case some == nil:
		return false
	case m.Prefix != nil && some.Prefix != nil:
		return strings.HasPrefix(*some.Prefix, *m.Prefix)
	case m.Prefix != nil && some.Exact != nil:
		return strings.HasPrefix(*some.Exact, *m.Prefix)
	}
	return reflect.DeepEqual(m, some)
}

// coversPairs reports whether each condition of all is among some, so that requests that meet some meet all.
func coversPairs(all, some Pairs) bool {
	return !slices.ContainsFunc(all.Pairs, func(p Pair) bool {
		return !slices.ContainsFunc(some.Pairs, func(q Pair) bool {
			return reflect.DeepEqual(p.Key, q.Key) && p.Value.coversAll(q.Value)
		})
	})
}

// Warn warns of conditions that no request meets.
func Warn(at string, m Match, ps *document.Problems) {
	for i, method := range m.Methods {
		WarnMethod(document.Element(at+"/methods", i), method, ps)
	}
	if m.Path == nil || m.Path.Regex == nil {
		return
	}
	re, err := syntax.Parse(*m.Path.Regex, syntax.Perl)
	if err != nil {
		return
	}
	if why := pathless(re.Simplify()); why != "" {
		ps.Add(at+"/path/regex", "matches no path: %s", why)
	}
}

// WarnMethod warns of methods that no request can have here.
func WarnMethod(at, method string, ps *document.Problems) {
	if method == http.MethodConnect {
		ps.Add(at, "no request has this method: it opens a tunnel, whose requests are judged one by one")
	}
}

// pathless returns the reason why a regular expression matches no path; "" if it may match one. It examines the literals of every match.
func pathless(re *syntax.Regexp) string {
	parts := []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = re.Sub
	}
	for i, part := range parts {
		if part.Op == syntax.OpCapture {
			part = part.Sub[0]
		}
		if part.Op != syntax.OpLiteral {
			continue
		}
		if r := part.Rune[0]; i > 0 && parts[i-1].Op == syntax.OpBeginText && r != '/' && r != '*' {
			return "every path begins with /"
		}
		if at := slices.IndexFunc(part.Rune, func(r rune) bool { return strings.ContainsRune("?# ", r) }); at >= 0 {
			return "no path contains " + name.Quote(string(part.Rune[at])) + "; the query is matched by query"
		}
	}
	return ""
}

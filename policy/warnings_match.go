package policy

import (
	"net/http"
	"reflect"
	"regexp/syntax"
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

// This file warns of matches that no request can have.

// warnAlternatives finds alternatives behind one that covers all their requests. Those of a pattern follow one another.
func warnAlternatives(headers []HeaderRule, ps *document.Problems) {
	first := 0
	for i, h := range headers {
		if h.Pattern != headers[first].Pattern {
			first = i
		}
		at := document.Pointer("/attach_headers", h.Pattern.String())
		if i > first || i+1 < len(headers) && headers[i+1].Pattern == h.Pattern {
			at = document.Element(at, i-first)
		}
		if h.Match != nil {
			warnMatch(at+"/match", *h.Match, ps)
		}
		for k := first; k < i; k++ {
			if coversRequests(headers[k].Match, h.Match) {
				ps.Add(at, "can never apply: number %d of the host, which comes before it, is for all of its requests", k-first)
				break
			}
		}
	}
}

// warnRules finds request rules behind one that decides all their requests.
func (c *Compiled) warnRules(ps *document.Problems) {
	for i, r := range c.spec.Rules {
		at := document.Element("/rules", i)
		for k, method := range r.Methods {
			warnMethod(document.Element(at+"/methods", k), method, ps)
		}
		if r.Match != nil {
			warnMatch(at+"/match", *r.Match, ps)
		}
		for k := range i {
			if c.spec.Rules[k].decidesAllOf(r) {
				ps.Add(at, "can never apply: number %d, which comes before it, decides all of its requests", k)
				break
			}
		}
	}
}

// decidesAllOf reports whether r decides every request that other does. One that allows decides only what it is sure of, and one
// that denies also what it is not.
func (r RequestRule) decidesAllOf(other RequestRule) bool {
	all := len(r.Methods) == 0 && len(r.Paths) == 0 && r.Match == nil
	if !all && r.Action == actionAllow && other.Action != actionAllow {
		return false
	}
	for _, host := range other.Hosts {
		p, err := name.ParsePattern(host)
		if err != nil || !slices.ContainsFunc(r.Hosts, func(s string) bool {
			q, err := name.ParsePattern(s)
			return err == nil && q.Covers(p)
		}) {
			return false
		}
	}
	return coversMethods(r.Methods, other.Methods) && (len(r.Paths) == 0 || coversPaths(r.Paths, other.Paths)) && coversRequests(r.Match, other.Match)
}

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

// coversRequests reports whether every request of one match is surely one of another; nil is every request.
func coversRequests(all, some *Match) bool {
	switch {
	case all == nil:
		return true
	case some == nil:
		return false
	}
	return coversMethods(all.Methods, some.Methods) && all.Path.coversAll(some.Path) &&
		coversPairs(all.Query, some.Query) && coversPairs(all.Headers, some.Headers)
}

// coversAll reports whether every text of another matcher is surely one of m; nil is every text.
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

// coversPairs reports whether whatever meets some meets all: each condition is among the others.
func coversPairs(all, some MatchPairs) bool {
	return !slices.ContainsFunc(all.Pairs, func(p MatchPair) bool {
		return !slices.ContainsFunc(some.Pairs, func(q MatchPair) bool {
			return reflect.DeepEqual(p.Key, q.Key) && p.Value.coversAll(q.Value)
		})
	})
}

// warnMatch finds what no request has.
func warnMatch(at string, m Match, ps *document.Problems) {
	for i, method := range m.Methods {
		warnMethod(document.Element(at+"/methods", i), method, ps)
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

// warnMethod warns of the method that no request has here.
func warnMethod(at, method string, ps *document.Problems) {
	if method == http.MethodConnect {
		ps.Add(at, "no request has this method: it opens a tunnel, whose requests are judged one by one")
	}
}

// pathless says why a regular expression matches no path; "" if it may match one. It looks at what every match contains.
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

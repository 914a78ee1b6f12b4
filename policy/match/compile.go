package match

import (
	"net/http"
	"reflect"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

// Limits of a match. The limits of regular expressions bound their running time, which grows with the size of the program and the
// length of the text.
const (
	maxMatchPairs   = 16 // of the query or the headers
	maxMatcherText  = 1024
	maxRegexProgram = 512 // instructions
)

// Compile checks and compiles a match that is judged before the body of the request is read. The result is valid only if ps stays empty.
func Compile(at string, m Match, ps *document.Problems) *Conditions {
	refuseContents(at, &m, ps)
	return compileHead(at, m, ps)
}

// compileHead checks and compiles the conditions on the head of a request.
func compileHead(at string, m Match, ps *document.Problems) *Conditions {
	out := &Conditions{methods: m.Methods}
	if m.IsZero() && m.Methods == nil {
		ps.Add(at, "is empty; leave it out to match every request")
	}
	if m.Methods != nil && len(m.Methods) == 0 {
		ps.Add(at+"/methods", "is empty; leave it out to match every method")
	}
	if !ps.TooMany(at+"/methods", len(m.Methods), maxRuleElements) {
		for i, method := range m.Methods {
			checkMethod(document.Element(at+"/methods", i), method, ps)
		}
	}
	if m.Path != nil {
		out.path = checkPathMatcher(at+"/path", *m.Path, ps)
	}
	out.query = checkPairs(at+"/query", m.Query, ps, checkParameter)
	out.headers = checkPairs(at+"/headers", m.Headers, ps, checkMatchedHeader)
	return out
}

// checkParameter completes the matcher of a query parameter.
func checkParameter(at string, p *pairMatcher, ps *document.Problems) {
	if p.folded = foldParameter(p.key.text); p.key.exact && p.key.text == "" {
		ps.Add(at, "is an empty name")
	}
}

// checkMatchedHeader completes the matcher of a header. Names are compared in lower case.
func checkMatchedHeader(at string, p *pairMatcher, ps *document.Problems) {
	n := p.key.text
	p.key.text, p.key.re, p.folded = p.key.folded, p.key.foldedRE, FoldHeader(n)
	if !p.key.exact {
		return
	}
	if flaw := HeaderFlaw(n); flaw != "" {
		ps.Add(at, "%s %s", name.Quote(name.Shown(n, name.IsToken)), strings.Replace(flaw, "cannot be set", "cannot be matched", 1))
	}
}

func checkPathMatcher(at string, m Matcher, ps *document.Problems) *pathMatcher {
	sent := checkMatcher(at, m, ps)
	out := &pathMatcher{sent, sent}
	switch {
	case m.Exact != nil && *m.Exact != "":
		out.resolved.set(checkPath(at+"/exact", escapeStar(*m.Exact), ps).clean)
	case m.Prefix != nil && *m.Prefix != "":
		out.resolved.set(checkPath(at+"/prefix", escapeStar(*m.Prefix), ps).clean)
	case m.Exact != nil:
		ps.Add(at+"/exact", "is empty; every path begins with /")
	}
	return out
}

// escapeStar marks a literal star, which the paths of a rule cannot contain.
func escapeStar(path string) string {
	if path == "*" {
		return path
	}
	return strings.ReplaceAll(path, "*", "%2A")
}

// checkPairs checks the conditions on a query or on headers. complete does the part that differs between them.
func checkPairs(at string, m Pairs, ps *document.Problems, complete func(at string, p *pairMatcher, ps *document.Problems)) []pairMatcher {
	if ps.TooMany(at, len(m.Pairs), maxMatchPairs) {
		return nil
	}
	out := make([]pairMatcher, 0, len(m.Pairs))
	for i, pair := range m.Pairs {
		where := pairPointer(at, m, i)
		p := pairMatcher{key: checkMatcher(where+"/key", pair.Key, ps), anyValue: pair.Value == nil}
		complete(where, &p, ps)
		if pair.Value != nil {
			p.value = checkMatcher(where, *pair.Value, ps)
		}
		out = append(out, p)
	}
	return out
}

// pairPointer returns the pointer of a condition in the form in which it is written.
func pairPointer(at string, m Pairs, i int) string {
	for _, p := range m.Pairs {
		if p.Key.Exact == nil || p.Value == nil {
			return document.Element(at, i)
		}
	}
	return document.Pointer(at, *m.Pairs[i].Key.Exact)
}

func checkMatcher(at string, m Matcher, ps *document.Problems) (out textMatcher) {
	given := 0
	for _, s := range []*string{m.Exact, m.Prefix, m.Regex} {
		if s != nil {
			given++
			if len(*s) > maxMatcherText {
				ps.Add(at, "is longer than %d bytes", maxMatcherText)
				return out
			}
		}
	}
	switch {
	case given != 1:
		ps.Add(at, `needs exactly one of "exact", "prefix" and "regex"`)
	case m.Regex != nil:
		out.re, out.foldedRE, out.size = checkRegex(at+"/regex", *m.Regex, ps)
	case m.Exact != nil:
		out.exact = true
		out.set(*m.Exact)
	default:
		out.any = *m.Prefix == ""
		out.set(*m.Prefix)
	}
	return out
}

// set sets the text of an exact matcher or a prefix. Regular expressions have none.
func (m *textMatcher) set(text string) {
	if m.re == nil {
		m.text, m.folded = text, strings.ToLower(text)
	}
}

// checkRegex compiles a regular expression, as written and ignoring case.
func checkRegex(at, expr string, ps *document.Problems) (re, folded *regexp.Regexp, size int) {
	if expr == "" {
		ps.Add(at, `is empty; {"prefix": ""} matches everything`)
		return nil, nil, 0
	}
	size, err := programSize("(?i:" + expr + ")")
	if err != nil {
		ps.Add(at, "is no regular expression (RE2): %s", regexFlaw(err))
		return nil, nil, 0
	} else if size > maxRegexProgram {
		ps.Add(at, "is too large: it compiles to %d instructions, the limit is %d; use fewer or smaller repetitions", size, maxRegexProgram)
		return nil, nil, 0
	}
	re, err = regexp.Compile(expr)
	if err != nil { // "a)(?:b" is an expression only inside the parentheses
		ps.Add(at, "is no regular expression (RE2): %s", regexFlaw(err))
		return nil, nil, 0
	}
	if folded, err = regexp.Compile("(?i:" + expr + ")"); err != nil {
		ps.Add(at, "is no regular expression (RE2): %s", regexFlaw(err))
	}
	return re, folded, size
}

func programSize(expr string) (int, error) {
	parsed, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return 0, err
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0, err
	}
	return len(prog.Inst), nil
}

// regexFlaw describes the mistake without the prefix of the parser's message.
func regexFlaw(err error) string {
	return strings.TrimPrefix(err.Error(), "error parsing regexp: ")
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

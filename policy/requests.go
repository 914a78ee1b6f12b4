package policy

import (
	"slices"
	"strings"

	"boxgate/policy/name"
)

// requestRule is a RequestRule ready to match.
type requestRule struct {
	hosts   []name.Pattern
	methods []string
	paths   []pathPattern
	match   *requestMatcher // nil: every request
	deny    bool
	rule    string
}

// covers reports whether the rule applies to the host and port at all.
func (r *requestRule) covers(n name.Name, port uint16) bool {
	for _, h := range r.hosts {
		if h.Match(n, port) {
			return true
		}
	}
	return false
}

// decides reports whether the rule decides a request to a host that it covers.
func (r *requestRule) decides(req *judged) bool {
	if len(r.methods) > 0 && !r.hasMethod(req.method) || !r.hasPath(req.plain, req.clean) {
		return false
	}
	if r.match == nil {
		return true
	}
	f := r.match.fit(req)
	return f == fits || r.deny && f == unsure
}

// hasPath reports whether the rule covers a path. plain is the path as sent, clean the resolved form.
func (r *requestRule) hasPath(plain, clean string) bool {
	if len(r.paths) == 0 {
		return true
	}
	// Where the server may read the path differently from us, a denying rule must match either reading, an allowing one
	// both.
	for _, p := range r.paths {
		asSent, resolved := matchPath(p.plain, p.prefix, plain), matchPath(p.clean, p.prefix, clean)
		if asSent && resolved || r.deny && (asSent || resolved) {
			return true
		}
	}
	return false
}

// hasMethod reports whether the rule covers a method. Methods are case-sensitive (RFC 9110, 9.1), but some servers
// ignore that, and so does a rule that denies.
func (r *requestRule) hasMethod(method string) bool {
	return slices.Contains(r.methods, method) ||
		r.deny && slices.ContainsFunc(r.methods, func(m string) bool { return strings.EqualFold(m, method) })
}

// describe writes a rule in one line for decisions.
func describe(r RequestRule) string {
	s := r.Action
	if len(r.Methods) > 0 {
		s += " " + strings.Join(r.Methods, ",")
	}
	s += " " + strings.Join(r.Hosts, ",")
	if len(r.Paths) > 0 {
		s += " " + strings.Join(r.Paths, ",")
	}
	if r.Match != nil {
		s += " " + r.Match.String()
	}
	return s
}

// pathPattern is a path as written and as resolved, without a trailing star.
type pathPattern struct {
	plain, clean string
	prefix       bool
}

func newPathPattern(s string) pathPattern {
	plain, prefix := strings.CutSuffix(s, "*")
	return pathPattern{plain, resolvePath(plain), prefix}
}

// String returns the resolved form.
func (p pathPattern) String() string {
	if p.prefix {
		return p.clean + "*"
	}
	return p.clean
}

func matchPath(pattern string, prefix bool, path string) bool {
	if prefix {
		return strings.HasPrefix(path, pattern)
	}
	return path == pattern
}

// resolvePath returns path as a lenient server may read it: percent-encoding decoded once, backslashes as slashes,
// repeated slashes as one, "." and ".." segments resolved. It returns path itself, without allocating, if nothing
// changes.
func resolvePath(path string) string {
	if !strings.ContainsAny(path, `%\`) && !strings.Contains(path, "//") && !hasDotSegment(path) {
		return path
	}
	path = strings.ReplaceAll(decodePercent(path), `\`, "/")
	var kept []string
	segments := strings.Split(path, "/")
	for i, s := range segments {
		last := i == len(segments)-1
		switch {
		case s == "..":
			kept = kept[:max(len(kept)-1, 0)]
		case s != "" && s != ".":
			kept = append(kept, s)
			continue
		}
		if last {
			kept = append(kept, "") // a path that ends in a slash, "." or ".." is a directory
		}
	}
	return "/" + strings.Join(kept, "/")
}

func hasDotSegment(path string) bool {
	for rest := path; ; {
		i := strings.Index(rest, "/.")
		if i < 0 {
			return false
		}
		rest = rest[i+2:]
		tail := strings.TrimPrefix(rest, ".")
		if tail == "" || tail[0] == '/' {
			return true
		}
	}
}

// decodePercent decodes valid escapes and leaves the rest as it is.
func decodePercent(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			high, ok1 := hexDigit(s[i+1])
			low, ok2 := hexDigit(s[i+2])
			if ok1 && ok2 {
				b.WriteByte(high<<4 | low)
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

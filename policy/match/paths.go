package match

import (
	"strings"
	"unicode/utf8"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

// IsAmbiguous reports whether servers may interpret a path (as sent, without its query) differently, so that a request
// rule could judge one resource and the server return another. Refused are
//
//   - empty segments, "." and ".." segments, backslashes, ";" (parameters, which some servers remove)
//   - percent-encoded slashes, backslashes, dots, percent signs, ";", "?", "#" and control bytes, which are special for a
//     server that decodes early, late or twice; encoded letters, digits, "-" and "_", which never need encoding
//   - percent signs outside escapes, bytes outside ASCII, and escapes that are not UTF-8 (such as overlong forms) or that
//     Unicode compatibility mappings turn into a slash or dot
//
// All other paths are equivalent for servers that compare paths as sent except for escapes, servers that decode once, and
// servers that clean the decoded path. "*" is the path of OPTIONS only.
func IsAmbiguous(path string) bool {
	if path == "*" {
		return false
	}
	if path == "" || path[0] != '/' {
		return true
	}
	escapes := false
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case c == '/':
			if i > 0 && isDots(path[strings.LastIndexByte(path[:i], '/')+1:i]) {
				return true
			}
		case c <= ' ' || c >= 0x7f, c == '\\', c == ';', c == '?', c == '#':
			return true
		case c == '%':
			if i+2 >= len(path) || !isPlainEscape(path[i+1], path[i+2]) {
				return true
			}
			i += 2
			escapes = true
		}
	}
	if last := path[strings.LastIndexByte(path, '/')+1:]; last == "." || last == ".." {
		return true
	}
	return escapes && isOddText(decodePercent(path))
}

// isDots reports whether a segment that is not the last is empty, "." or "..".
func isDots(segment string) bool { return segment == "" || segment == "." || segment == ".." }

// isPlainEscape reports whether the byte encoded by %XY needs encoding and has no meaning in the syntax of paths.
func isPlainEscape(x, y byte) bool {
	high, ok1 := hexDigit(x)
	low, ok2 := hexDigit(y)
	c := high<<4 | low
	if !ok1 || !ok2 || c < ' ' || c == 0x7f {
		return false
	}
	return !name.IsWordByte(c) && strings.IndexByte(`/\.%;?#-`, c) < 0
}

// isOddText reports whether a decoded path is not UTF-8, or has a character that compatibility mappings turn into the syntax of
// paths.
func isOddText(s string) bool {
	return !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool {
		switch r {
		case '\u2024', '\u2025', '\ufe52', '\uff0e', // dots
			'\u2044', '\u2215', '\u29f8', '\uff0f', // slashes
			'\u2216', '\u29f5', '\ufe68', '\uff3c', // backslashes
			'\uff05', '\ufe6a', '\uff1b', '\ufe54', // percent signs and semicolons
			'\ufeff':
			return true
		}
		return r >= 0x80 && r < 0xa0
	})
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

// resolvePath returns path as interpreted by a lenient server: percent-encoding decoded once, backslashes as slashes,
// repeated slashes as one, "." and ".." segments resolved. It returns path, without allocating, if it is unchanged.
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
			kept = append(kept, "") // a path with a slash, "." or ".." at the end is a directory
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

// decodePercent decodes valid escapes.
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

func checkPath(at, p string, ps *document.Problems) pathPattern {
	out := newPathPattern(p)
	switch {
	case p == "" || p[0] != '/' && p != "*":
		ps.Add(at, "%s does not begin with /", name.Quote(p))
	case len(p) > 4096:
		ps.Add(at, "is longer than 4096 bytes")
	case strings.ContainsAny(p, "?#"):
		ps.Add(at, "%s has a query or fragment, which paths are matched without; use %q", name.Quote(p), p[:strings.IndexAny(p, "?#")])
	case strings.IndexFunc(p, name.IsBlank) >= 0:
		ps.Add(at, "%s has a space or control character; write it percent-encoded", name.Quote(p))
	case strings.Contains(strings.TrimSuffix(p, "*"), "*"):
		ps.Add(at, `%s has a * that is not at the end`, name.Quote(p))
	case hasDotSegment(p):
		ps.Add(at, "%s has a . or .. segment; use %q", name.Quote(p), out.String())
	}
	return out
}

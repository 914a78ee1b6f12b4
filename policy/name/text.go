package name

import (
	"strconv"
	"strings"
)

// syntaxError is a refused text with its correction, worded for users.
type syntaxError struct {
	input string
	flaw  string // completes the sentence that begins with the input
	use   string // the corrected form; empty where none is obvious
}

func (e *syntaxError) Error() string {
	s := Quote(e.input) + " " + e.flaw
	if e.use != "" {
		s += "; use " + strconv.Quote(e.use)
	}
	return s
}

// Quote returns a refused text quoted and shortened, safe to print to a terminal or log.
func Quote(s string) string {
	const most = 100
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.Quote(s)
}

// nameError refuses s, and suggests a name if one is left after stripping everything around it.
func nameError(s, flaw string) error {
	e := &syntaxError{input: s, flaw: flaw}
	host, _, _ := strings.Cut(bareHost(s), ":")
	if n, bad := parseName(host); bad == "" {
		e.use = n.String()
	}
	return e
}

// patternError refuses s, and suggests the pattern that was probably meant, if that is valid.
func patternError(s, flaw string) error {
	e := &syntaxError{input: s, flaw: flaw}
	if p, bad := parsePattern(wholeLabel(bareHost(s))); bad == "" {
		e.use = p.String()
		if strings.HasPrefix(s, "https://") {
			e.use = strings.TrimSuffix(e.use, ":443")
		}
	}
	return e
}

// bareHost strips scheme, user, path, query and surrounding space, which are there when s was copied from a browser.
func bareHost(s string) string {
	if len(s) > maxInputLen {
		return ""
	}
	s = strings.TrimSpace(s)
	if _, rest, ok := strings.Cut(s, "://"); ok {
		s = rest
	}
	if i := strings.IndexAny(s, `/\?#`); i >= 0 {
		s = s[:i]
	}
	return s[strings.LastIndex(s, "@")+1:]
}

// wholeLabel makes the star of "*foo.com", ".foo.com" and "*.*.foo.com" the whole first label.
func wholeLabel(s string) string {
	rest := strings.TrimLeft(s, "*.")
	if rest == s || rest == "" || strings.HasPrefix(rest, ":") {
		return s
	}
	return "*." + rest
}

// Shown returns a name as an error may show it: up to the first character that is not valid in one. What follows is
// often a value that was put in the wrong place, as in "Authorization: Bearer …".
func Shown(name string, mayHold func(byte) bool) string {
	for i := range len(name) {
		if !mayHold(name[i]) && i > 0 {
			return name[:i] + "…"
		}
	}
	return name
}

// IsToken reports whether c is a tchar of RFC 9110 5.6.2.
func IsToken(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// IsWordByte reports whether c is valid in the name of a variable.
func IsWordByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_'
}

package name

import (
	"strconv"
	"strings"
)

// syntaxError is the error for a refused text, with a correction.
type syntaxError struct {
	input string
	flaw  string // completes the sentence that begins with the input
	use   string // the corrected form; empty if there is no obvious one
}

func (e *syntaxError) Error() string {
	s := Quote(e.input) + " " + e.flaw
	if e.use != "" {
		s += "; use " + strconv.Quote(e.use)
	}
	return s
}

// Quote returns a text quoted and shortened, safe for terminals and logs.
func Quote(s string) string {
	const most = 100
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.Quote(s)
}

// nameError returns the error for s, with the host name in s as correction if there is one.
func nameError(s, flaw string) error {
	e := &syntaxError{input: s, flaw: flaw}
	host, _, _ := strings.Cut(bareHost(s), ":")
	if n, bad := parseName(host); bad == "" {
		e.use = n.String()
	}
	return e
}

// patternError returns the error for s, with the pattern that was probably intended as correction if that is valid.
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

// bareHost removes scheme, user, path, query and surrounding space, as in a text copied from a browser.
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

// Shown returns a name for an error message, up to the first character that is not valid. The rest is often a value in the wrong
// place, as in "Authorization: Bearer …".
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

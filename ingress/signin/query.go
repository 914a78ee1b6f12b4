// Package signin parses the visitors' input for signing in to a public URL: the form of the page, and the gateway's
// parameters in the query. It also removes those parameters, which applications must not see, and checks the path to return
// to. Pure: no clock, no state.
package signin

import (
	"net/url"
	"strings"
)

// Parameters of the gateway.
const (
	TokenParameter = "boxgate_token" // a bearer token, exchanged for a session
	LinkParameter  = "boxgate_link"  // the signature of a signed URL
)

// prefix is the prefix of the gateway's parameters.
const prefix = "boxgate_"

// own reports whether a query parameter begins with the prefix for some program: in any case, escaped, or after spaces.
func own[T string | []byte](parameter T) bool {
	for matched, i := 0, 0; i < len(parameter); {
		c, size := decode(parameter[i:])
		i += size
		switch {
		case matched == 0 && (c <= ' ' || c == '+'):
		case lower(c) != prefix[matched]:
			return false
		case matched == len(prefix)-1:
			return true
		default:
			matched++
		}
	}
	return false
}

// decode returns the first byte of a text escaped as in a query, and the length of its escape.
func decode[T string | []byte](text T) (c byte, size int) {
	if text[0] != '%' || len(text) < 3 {
		return text[0], 1
	}
	high, low := digit(text[1]), digit(text[2])
	if high < 0 || low < 0 {
		return text[0], 1
	}
	return byte(high<<4 | low), 3
}

// digit returns the value of a hexadecimal digit, or -1.
func digit(c byte) int { return strings.IndexByte("0123456789abcdef", lower(c)) }

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// separates reports whether some program treats a byte as a separator of query parameters.
func separates(c byte) bool { return c == '&' || c == ';' }

// parameters calls do for each parameter of the query of a target or a URL, with its position, until do returns false.
func parameters[T string | []byte](target T, do func(from, to int) bool) {
	from := 0
	for from < len(target) && target[from] != '?' {
		from++
	}
	for from++; from <= len(target); {
		to := from
		for to < len(target) && !separates(target[to]) {
			to++
		}
		if !do(from, to) {
			return
		}
		from = to + 1
	}
}

// HasOwn reports whether Clean would change the target.
func HasOwn[T string | []byte](target T) (has bool) {
	parameters(target, func(from, to int) bool {
		has = own(target[from:to])
		return !has
	})
	return has
}

// Parameter returns the value of a query parameter as received. It rejects a duplicate, because two readers could use
// different ones.
func Parameter(query, name string) (value string, ok bool) {
	if !strings.Contains(query, prefix) {
		return "", false
	}
	for p := range strings.SplitSeq(query, "&") {
		n, v, _ := strings.Cut(p, "=")
		if n != name {
			continue
		}
		if ok {
			return "", false
		}
		value, ok = v, true
	}
	if !ok {
		return "", false
	}
	value, err := url.QueryUnescape(value)
	return value, err == nil
}

// Clean returns a request target or URL without the gateway's parameters in any spelling. It returns a target without them
// unchanged.
func Clean(target string) string {
	if !HasOwn(target) {
		return target
	}
	var clean strings.Builder
	path, _, _ := strings.Cut(target, "?")
	clean.WriteString(path)
	parameters(target, func(from, to int) bool {
		if own(target[from:to]) {
			return true
		}
		separator := target[from-1]
		if clean.Len() == len(path) {
			separator = '?'
		}
		clean.WriteByte(separator)
		clean.WriteString(target[from:to])
		return true
	})
	return clean.String()
}

// longest is the longest path to return to after a sign-in.
const longest = 4 << 10

// Local returns the path, with a query, for redirecting a signed-in visitor: next, if every browser resolves it on the
// URL's own host, otherwise "/". reserved is the prefix of the gateway's own paths.
func Local(next, reserved string) string {
	if len(next) > longest || !strings.HasPrefix(next, "/") || strings.HasPrefix(next, reserved) {
		return "/"
	}
	for i := range len(next) {
		if next[i] <= ' ' || next[i] >= 0x7f { // browsers drop some of these bytes, joining their neighbours
			return "/"
		}
	}
	if len(next) > 1 && (next[1] == '/' || next[1] == '\\') {
		return "/." + next // "//host" and "/\host" lead to another host
	}
	return next
}

// Value returns the value of a parameter of one of the gateway's own paths, which applications do not see.
func Value(query, name string) (value string, ok bool) {
	values, err := url.ParseQuery(query)
	if err != nil || len(values[name]) != 1 {
		return "", false
	}
	return values[name][0], true
}

// Next returns the return path in a query, or "".
func Next(query string) string {
	next, _ := Value(query, "next")
	return next
}

// Form is a visitor's input.
type Form struct {
	Token, User, Password string
	Next                  string
}

// ParseForm reads the body of a form (application/x-www-form-urlencoded).
func ParseForm(body []byte) (Form, bool) {
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return Form{}, false
	}
	return Form{
		Token: strings.TrimSpace(values.Get("token")), User: values.Get("username"), Password: values.Get("password"),
		Next: values.Get("next"),
	}, true
}

package signin

import (
	"net/url"
	"strings"
)

// The parameters of the gateway.
const (
	TokenParameter = "boxgate_token" // a bearer token, exchanged for a session
	LinkParameter  = "boxgate_link"  // the signature of a signed URL
)

// prefix begins the names of the gateway's parameters.
const prefix = "boxgate_"

// own reports whether a parameter of a query, as sent, is one of the gateway's.
func own(parameter string) bool {
	name, _, _ := strings.Cut(parameter, "=")
	return name == TokenParameter || name == LinkParameter
}

// Parameter returns the value of a parameter of a query as sent. One that occurs twice has none: two readers could take
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

// Clean returns the target of a request, or a URL, without the gateway's parameters. One that has none is returned as it is.
func Clean(target string) string {
	path, query, ok := strings.Cut(target, "?")
	if !ok || !strings.Contains(query, prefix) {
		return target
	}
	var kept []string
	for p := range strings.SplitSeq(query, "&") {
		if !own(p) {
			kept = append(kept, p)
		}
	}
	if len(kept) == 0 {
		return path
	}
	return path + "?" + strings.Join(kept, "&")
}

// longest is the longest path to which a sign-in returns.
const longest = 4 << 10

// Local returns the path, with a query, to which a visitor who has signed in is sent: next, if it stays on the URL's own
// host whatever a browser makes of it, or else "/". reserved begins the paths that are the gateway's own.
func Local(next, reserved string) string {
	if len(next) > longest || !strings.HasPrefix(next, "/") || strings.HasPrefix(next, reserved) {
		return "/"
	}
	for i := range len(next) {
		if next[i] <= ' ' || next[i] >= 0x7f { // a browser drops some of them, and joins what they separate
			return "/"
		}
	}
	if len(next) > 1 && (next[1] == '/' || next[1] == '\\') {
		return "/." + next // "//host" and "/\host" lead to another host
	}
	return next
}

// Value returns the value of a parameter that is not the application's to see: of a path of the gateway's own.
func Value(query, name string) (value string, ok bool) {
	values, err := url.ParseQuery(query)
	if err != nil || len(values[name]) != 1 {
		return "", false
	}
	return values[name][0], true
}

// Next returns the path to return to that a query names, or "".
func Next(query string) string {
	next, _ := Value(query, "next")
	return next
}

// Form is what a visitor has entered.
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

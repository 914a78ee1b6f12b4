// Package forward is the kind of rules that send requests to a proxy of the operator instead of to their server. The proxy decides about them:
//
//	{"forward_url": "https://proxy.example.net/sandbox"}
//
// Header fields as in Vercel Sandbox contain the original destination and a token of the box.
package forward

import (
	"encoding/json"
	"errors"
	"net/url"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
)

// Key is the member of a rule's document.
const Key = "forward_url"

// Kind reads rules that forward.
type Kind struct{}

// Key implements [rule.Kind].
func (Kind) Key() string { return Key }

// Doc implements [rule.Kind].
func (Kind) Doc() string {
	return "https URL of a proxy that the requests are sent to in the place of the host; neither headers nor placeholders may stand beside it"
}

// Form implements [rule.Kind].
func (Kind) Form() reflect.Type { return reflect.TypeFor[string]() }

// View implements [rule.Viewed].
func (Kind) View() (form reflect.Type, doc string) { return reflect.TypeFor[string](), "" }

// Example implements [rule.Kind].
func (Kind) Example() string { return `"https://proxy.test:8443/in"` }

// Flags implements [rule.Flagged].
func (Kind) Flags() []rule.Flag {
	return []rule.Flag{{Name: "forward-url", Usage: "URL of a proxy of yours (https) that decides about the requests in the place of the host"}}
}

// FromFlag implements [rule.Flagged].
func (Kind) FromFlag(_ any, a rule.Argument) (any, error) { return a.Text, nil }

// Line implements [rule.Kind].
func (Kind) Line(shown json.RawMessage) string {
	var to string
	if json.Unmarshal(shown, &to) != nil {
		return ""
	}
	return "(forwarded to " + to + ")"
}

// Parse implements [rule.Kind].
func (Kind) Parse(at string, v document.Value, c *rule.Context) rule.Effect {
	text := v.AsString(at, &c.Problems)
	if v.Kind != document.Text {
		return nil
	}
	e, err := parse(text)
	if err != nil {
		c.Add(at, "%v", err)
		return nil
	}
	return e
}

// maxURL is the length of the longest URL, in bytes.
const maxURL = 2048

// plainPath matches paths that all servers interpret in the same way.
var plainPath = regexp.MustCompile(`^(/[0-9A-Za-z_~-][0-9A-Za-z._~-]*)*$`)

// parse reads the URL of a proxy: https, a host name, optionally a port and a path. The error completes a sentence about the URL and does not
// quote it.
func parse(text string) (*effect, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "https" || u.Host == "" || u.Opaque != "" || len(text) > maxURL:
		return nil, errors.New("is not an https URL")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(text, "#"):
		return nil, errors.New("is not an https URL without credentials, query and fragment")
	}
	e := &effect{port: name.HTTPSPort, path: strings.TrimRight(u.EscapedPath(), "/")}
	if e.name, err = name.Parse(u.Hostname()); err != nil || strings.Contains(u.Host, "[") {
		return nil, errors.New("does not give its host by name")
	}
	if text := u.Port(); text != "" || strings.HasSuffix(u.Host, ":") {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 {
			return nil, errors.New("has no valid port")
		}
		e.port = uint16(n)
	}
	if !plainPath.MatchString(e.path) {
		return nil, errors.New("has a path of other than letters, digits and '_', '~', '-', '.' between single slashes")
	}
	e.authority = e.name.String()
	if e.port != name.HTTPSPort {
		e.authority += ":" + strconv.Itoa(int(e.port))
	}
	return e, nil
}

// effect forwards to a proxy.
type effect struct {
	name      name.Name
	port      uint16
	authority string
	path      string // prefix of the path of each request; empty or without a trailing slash
}

// Key implements [rule.Effect].
func (*effect) Key() string { return Key }

// Document implements [rule.Effect].
func (e *effect) Document() any { return e.URL() }

// Show implements [rule.Effect].
func (e *effect) Show() any { return e.URL() }

// Equal implements [rule.Effect].
func (e *effect) Equal(other rule.Effect) bool {
	o, ok := other.(*effect)
	return ok && *e == *o
}

// OnlyForAdmins implements [rule.AdminOnly]: the proxy receives the requests with a token that the gateway signs.
func (*effect) OnlyForAdmins() {}

// RefusesValues implements [rule.WithoutValues].
func (*effect) RefusesValues() string {
	return "sends the requests to another host, so nothing that sets values can stand beside it"
}

// Proxy implements [rule.Redirect].
func (e *effect) Proxy() (n name.Name, port uint16) { return e.name, e.port }

// URL implements [rule.Redirect].
func (e *effect) URL() string { return "https://" + e.authority + e.path }

// Authority implements [rule.Redirect].
func (e *effect) Authority() string { return e.authority }

// Target implements [rule.Redirect].
func (e *effect) Target(target string) string {
	if !strings.HasPrefix(target, "/") { // the asterisk of OPTIONS
		return e.path + "/"
	}
	return e.path + target
}

// Header fields for the proxy, as in Vercel Sandbox: the original destination of the request, and a token of the box.
const (
	forwardedHost   = "Vercel-Forwarded-Host"
	forwardedScheme = "Vercel-Forwarded-Scheme"
	forwardedPort   = "Vercel-Forwarded-Port"
	forwardedPath   = "Vercel-Forwarded-Path"
	forwardedToken  = "Vercel-Sandbox-Oidc-Token"
)

// Introduction implements [rule.Redirect].
func (e *effect) Introduction(host name.Name, port uint16, target string) []match.Field {
	return []match.Field{
		{Name: forwardedHost, Value: host.String()}, {Name: forwardedScheme, Value: "https"},
		{Name: forwardedPort, Value: strconv.Itoa(int(port))}, {Name: forwardedPath, Value: target},
	}
}

// TokenField implements [rule.Redirect].
func (*effect) TokenField() string { return forwardedToken }

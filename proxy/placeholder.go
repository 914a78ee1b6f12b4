package proxy

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"boxgate/policy"
	"boxgate/proxy/h1"
)

// This file finds the tokens of placeholders in a request and puts the values in their place. A token is looked for in
// everything of a request (in its body by placeholder_body.go); only in the value of a header does it stand for its value.

// tokenPlace is where in a request a token was found.
type tokenPlace uint8

const (
	inHeader        tokenPlace = iota
	inBasicUser                // of Authorization: Basic
	inBasicPassword            // likewise
	inTarget                   // method, request target or authority
	inField                    // a field of the hop, of the framing, or the name of any
	inTrailer
	inPrinted // a header that holds no key: see [policy.ShownHeader]
)

var placeNames = [...]string{
	"in a header", "in the user of basic authentication", "in the password of basic authentication",
	"in the request line", "in a field that is not passed on", "in a trailer",
	"in a header that holds no key",
}

// sentToken is one token that a box sent.
type sentToken struct {
	text   string
	where  tokenPlace
	header string // name of the header, where it is in one
}

// error says for the log what leaked where. The token itself tells nobody anything.
func (t *sentToken) error(c *policy.Compiled) error {
	what := "a placeholder"
	if v := c.PlaceholderVariable(t.text); v != "" {
		what = "the placeholder " + v
	}
	if t.header != "" {
		return fmt.Errorf("%s %s (%s)", what, placeNames[t.where], t.header)
	}
	return fmt.Errorf("%s %s", what, placeNames[t.where])
}

// maxTokens bounds the tokens of one request, and with them what it can grow by.
const maxTokens = 64

var errManyTokens = errors.New("too many placeholders")

// tokenScan gathers the tokens of a request.
type tokenScan struct {
	found []sentToken
	many  bool
}

func (t *tokenScan) look(s string, where tokenPlace, header string) {
	for {
		start, end := policy.FindToken(s)
		if start < 0 {
			return
		}
		if len(t.found) == maxTokens {
			t.many = true
			return
		}
		t.found = append(t.found, sentToken{s[start:end], where, header})
		s = s[end:]
	}
}

// field looks through one field of a head.
func (t *tokenScan) field(name, value string, passed bool) {
	t.look(strings.ToLower(name), inField, "") // net/http writes names in another case
	if !passed {
		t.look(value, inField, name)
		return
	}
	if policy.ShownHeader(name) {
		t.look(value, inPrinted, name)
		return
	}
	t.look(value, inHeader, name)
	if credentials, ok := basicOf(name, value); ok {
		user, password, _ := strings.Cut(credentials, ":")
		t.look(user, inBasicUser, name)
		t.look(password, inBasicPassword, name)
	}
}

// tokensOf returns the tokens in a request head of HTTP/1.x, of which head is the whole text.
func tokensOf(head []byte, r *h1.Request) (t tokenScan) {
	start, _ := policy.FindTokenBytes(head)
	if start < 0 && !hasBasic(r) {
		return t
	}
	if start >= 0 {
		t.look(string(r.Method), inTarget, "")
		t.look(string(r.Target), inTarget, "")
	}
	for i := range r.Fields {
		f := &r.Fields[i]
		t.field(string(f.Name), string(f.Value), f.Kind == h1.Other)
	}
	return t
}

// hasBasic reports whether a request has credentials for basic authentication, in whose encoding a token cannot be seen.
func hasBasic(r *h1.Request) bool {
	for i := range r.Fields {
		if f := &r.Fields[i]; h1.EqualFold(f.Name, "authorization") && len(f.Value) > 6 && h1.EqualFold(f.Value[:5], "basic") {
			return true
		}
	}
	return false
}

// tokensOfHTTP2 returns the tokens in a request of HTTP/2, its announced trailers included.
func tokensOfHTTP2(r *http.Request) (t tokenScan) {
	t.look(r.Method, inTarget, "")
	t.look(r.RequestURI, inTarget, "")
	t.look(r.Host, inTarget, "")
	for name, values := range r.Header {
		for _, v := range values {
			t.field(name, v, !strings.HasPrefix(name, ":") && !strings.HasPrefix(name, "Proxy-"))
		}
	}
	for name := range r.Trailer {
		t.look(strings.ToLower(name), inTrailer, "")
	}
	return t
}

// trailerToken finds a token in a trailer section: none may be there.
func trailerToken(fields []h1.Field) error {
	for i := range fields {
		name, _ := policy.FindTokenBytes(fields[i].Name)
		value, _ := policy.FindTokenBytes(fields[i].Value)
		if name >= 0 || value >= 0 {
			return errLateToken
		}
	}
	return nil
}

// trailerTokenHTTP2 is trailerToken for HTTP/2.
func trailerTokenHTTP2(fields http.Header) error {
	for name, values := range fields {
		for _, v := range append([]string{strings.ToLower(name)}, values...) {
			if start, _ := policy.FindToken(v); start >= 0 {
				return errLateToken
			}
		}
	}
	return nil
}

// errLateToken ends a request whose head, and perhaps some of its body, was forwarded already.
var errLateToken = errors.New("a placeholder in the body or a trailer")

// leaked returns a token of the request that the rule of its host has no value for, or that is not in a header.
func (r *ruling) leaked(tokens []sentToken) *sentToken {
	for i := range tokens {
		t := &tokens[i]
		if t.where > inBasicPassword || placeholderOf(r.header.Placeholders, t.text) == nil {
			return t
		}
	}
	return nil
}

func leakProblem() *problem {
	return &problem{Status: http.StatusForbidden, Reason: policy.ReasonPlaceholderLeak,
		Detail: "A placeholder was sent where its value does not belong."}
}

func placeholderOf(list []policy.Placeholder, token string) *policy.Placeholder {
	for i := range list {
		if list[i].Token == token && token != "" {
			return &list[i]
		}
	}
	return nil
}

// swap is a token that was sent and the value that goes on in its place.
type swap struct {
	token, value string
	header       string
}

// swaps returns the values of the tokens that were sent; the others are not asked for.
func (p *Proxy) swaps(ctx context.Context, list []policy.Placeholder, tokens []sentToken) ([]swap, error) {
	var out []swap
	for _, t := range tokens {
		ph := placeholderOf(list, t.text)
		v := ph.Value.Reveal()
		if ph.Source != "" {
			var err error
			if v, err = p.secret(ctx, ph.Source); err != nil {
				return nil, err
			}
		}
		if t.where == inBasicUser && strings.Contains(v, ":") { // RFC 7617, 2: the server would cut it there
			return nil, fmt.Errorf("the value of %s has a colon: it cannot be the user of basic authentication", ph.Variable)
		}
		out = append(out, swap{t.text, v, t.header})
	}
	return out, nil
}

// swapField returns the value of a header with the tokens in it replaced.
func swapField(name, value string, swaps []swap) string {
	if start, _ := policy.FindToken(value); start >= 0 {
		return swapText(value, swaps)
	}
	credentials, ok := basicOf(name, value)
	if !ok {
		return value
	}
	if start, _ := policy.FindToken(credentials); start < 0 {
		return value // as the box encoded it
	}
	return value[:len("Basic ")] + base64.StdEncoding.EncodeToString([]byte(swapText(credentials, swaps)))
}

// swapText replaces in one pass, so that a value is never looked at again.
func swapText(s string, swaps []swap) string {
	start, end := policy.FindToken(s)
	if start < 0 {
		return s
	}
	var b strings.Builder
	for ; start >= 0; start, end = policy.FindToken(s) {
		b.WriteString(s[:start])
		for i := range swaps {
			if swaps[i].token == s[start:end] {
				b.WriteString(swaps[i].value)
				break
			}
		}
		s = s[end:]
	}
	b.WriteString(s)
	return b.String()
}

// swapFields puts the values into the fields of a request that was judged.
func swapFields(fields []h1.Field, swaps []swap) {
	if len(swaps) == 0 {
		return
	}
	for i := range fields {
		if f := &fields[i]; f.Kind == h1.Other {
			f.Value = []byte(swapField(string(f.Name), string(f.Value), swaps))
		}
	}
}

// swapHeader is swapFields for HTTP/2.
func swapHeader(h http.Header, swaps []swap) {
	if len(swaps) == 0 {
		return
	}
	for name, values := range h {
		for i, v := range values {
			values[i] = swapField(name, v, swaps)
		}
	}
}

// basicOf decodes the credentials of basic authentication (RFC 7617) as leniently as any server might.
func basicOf(name, value string) (credentials string, ok bool) {
	const scheme = "basic"
	if len(value) < len(scheme)+2 || !strings.EqualFold(name, "Authorization") || !strings.EqualFold(value[:len(scheme)], scheme) {
		return "", false
	}
	text := value[len(scheme):]
	if text[0] != ' ' && text[0] != '\t' {
		return "", false
	}
	text = strings.TrimRight(strings.Trim(text, " \t"), "=")
	text = strings.NewReplacer("-", "+", "_", "/").Replace(text)
	plain, err := base64.RawStdEncoding.DecodeString(text)
	return string(plain), err == nil
}

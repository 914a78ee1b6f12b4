package policy

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

// A token is tokenPrefix and 160 bits in lower-case base32: what a box holds in the place of a secret. It is recognised
// by its form wherever it turns up, and it consists of bytes that need no escaping in URLs, JSON or shells.
const (
	tokenPrefix = "bxgph_"
	tokenBytes  = 20
	TokenLen    = len(tokenPrefix) + tokenBytes*8/5 // length of every token
)

const tokenAlphabet = "abcdefghijklmnopqrstuvwxyz234567"

var tokenEncoding = base32.NewEncoding(tokenAlphabet).WithPadding(base32.NoPadding)

// NewToken returns the token of a variable under the key of a box: the same each time, and impossible to guess without
// the key.
func NewToken(key name.Secret, variable string) string {
	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	mac.Write([]byte(variable))
	return tokenPrefix + tokenEncoding.EncodeToString(mac.Sum(nil)[:tokenBytes])
}

// WithTokens returns the rules with every placeholder's token filled in. The result shares with rules what it does not
// change.
func WithTokens(rules []HeaderRule, key name.Secret) []HeaderRule {
	out := slices.Clone(rules)
	for i := range out {
		out[i].Placeholders = slices.Clone(out[i].Placeholders)
		for k := range out[i].Placeholders {
			p := &out[i].Placeholders[k]
			p.Token = NewToken(key, p.Variable)
		}
	}
	return out
}

// FindToken returns where the first token of any box and variable is in s; start is -1 if there is none.
func FindToken(s string) (start, end int) {
	for from := 0; ; {
		i := strings.Index(s[from:], tokenPrefix)
		if i < 0 {
			return -1, -1
		}
		from += i + len(tokenPrefix)
		if isTokenBody(s[from:]) {
			return from - len(tokenPrefix), from - len(tokenPrefix) + TokenLen
		}
	}
}

// FindTokenBytes is [FindToken] for bytes.
func FindTokenBytes(b []byte) (start, end int) {
	for from := 0; ; {
		i := bytes.Index(b[from:], []byte(tokenPrefix))
		if i < 0 {
			return -1, -1
		}
		from += i + len(tokenPrefix)
		if isTokenBody(b[from:]) {
			return from - len(tokenPrefix), from - len(tokenPrefix) + TokenLen
		}
	}
}

func isTokenBody[S []byte | string](s S) bool {
	const n = TokenLen - len(tokenPrefix)
	if len(s) < n {
		return false
	}
	for i := range n {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return true
}

// Places are where the placeholders of a rule may stand in a request, besides header values.
type Places uint8

// The places.
const (
	InQuery     Places = 1 << iota // the value of a parameter in the query
	InForm                         // the value of a field in a body of application/x-www-form-urlencoded
	InJSON                         // a string in a JSON body that is not the name of a member
	InWebSocket                    // a text message of a WebSocket
)

// placeNames are in the order of the bits. A header value is always a place.
var placeNames = []string{"query", "form", "json", "websocket"}

const headerPlace = "header"

// Has reports whether all of some places are among them.
func (p Places) Has(some Places) bool { return p&some == some }

// Names returns the places as written in rules, header values included; nil if there is nothing else.
func (p Places) Names() []string {
	if p == 0 {
		return nil
	}
	names := []string{headerPlace}
	for i, name := range placeNames {
		if p.Has(1 << i) {
			names = append(names, name)
		}
	}
	return names
}

// PlacesOf is the inverse of [Places.Names].
func PlacesOf(names []string) (p Places, ok bool) {
	for _, name := range names {
		i := slices.Index(placeNames, name)
		if i < 0 && name != headerPlace {
			return 0, false
		}
		if i >= 0 {
			p |= 1 << i
		}
	}
	return p, true
}

// places reads a list of places.
func (p *headerParser) places(at string, v document.Value) Places {
	names := v.AsStrings(at, &p.Problems)
	all := append([]string{headerPlace}, placeNames...)
	for i, name := range names {
		if !slices.Contains(all, name) {
			p.Add(document.Element(at, i), "is not one of %s", strings.Join(all, ", "))
		}
	}
	if v.Kind == document.List && !slices.Contains(names, headerPlace) {
		p.Add(at, `lacks "header": header values are always a place`)
	}
	places, _ := PlacesOf(names)
	return places
}

func (p *headerParser) placeholders(at string, v document.Value) []Placeholder {
	if v.Kind != document.Object {
		p.Add(at, "is %s; want an object of variables and values", v.Kind)
		return nil
	}
	if len(v.Keys) > maxHostPlaceholders {
		p.Add(at, "there are %d placeholders; the limit for one host is %d", len(v.Keys), maxHostPlaceholders)
		return nil
	}
	placeholders := make([]Placeholder, 0, len(v.Keys))
	for i, n := range v.Keys {
		shown := name.Shown(n, name.IsWordByte)
		at := document.Pointer(at, shown)
		if flaw := variableFlaw(n); flaw != "" {
			p.Add(at, "%s %s", name.Quote(shown), flaw)
		}
		text := p.Value(at, shown, v.Items[i], false)
		if text.Source == "" && text.Literal.Reveal() == "" {
			p.Add(at, "the value of %s is empty", name.Quote(shown))
		}
		placeholders = append(placeholders, Placeholder{Variable: n, Value: text.Literal, Source: text.Source})
	}
	slices.SortFunc(placeholders, func(a, b Placeholder) int { return cmp.Compare(a.Variable, b.Variable) })
	return placeholders
}

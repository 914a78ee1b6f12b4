package placeholder

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"

	"golang.org/x/net/http2/hpack"

	"boxgate/policy/match"
	"boxgate/relay/h1"
	"boxgate/rule"
)

// place is a part of a request.
type place uint8

const (
	inHeader        place = iota
	inBasicUser           // of Authorization: Basic
	inBasicPassword       // of Authorization: Basic
	inQuery               // the value of a parameter in the query
	inTarget              // the rest of the request line: method, request target, authority
	inField               // a hop-by-hop or framing field, or any field's name
	inTrailer
	inPrinted // a header that never contains a key: see [match.ShownHeader]
	inEscaped // after an unfinished escape: see inEscape
)

var placeNames = [...]string{
	"in a header", "in the user of basic authentication", "in the password of basic authentication",
	"in the query", "in the request line", "in a field that is not passed on", "in a trailer",
	"in a header that holds no key", "behind an unfinished escape",
}

// Sent is a token sent by a box.
type Sent struct {
	Text   string
	Header string // name of the header field that contained it; "" if it was elsewhere
	where  place
}

// Error returns the error for the log, which names the variable of the placeholder and the place. variable is "" if the token belongs to
// another box. The token itself would be useless to readers.
func (t *Sent) Error(variable string) error {
	what := "a placeholder"
	if variable != "" {
		what = "the placeholder " + variable
	}
	if t.Header != "" {
		return fmt.Errorf("%s %s (%s)", what, placeNames[t.where], t.Header)
	}
	return fmt.Errorf("%s %s", what, placeNames[t.where])
}

// Swappable reports whether the token may be replaced: it was found in the value of a header that can contain a key, or in one of the places of
// the rule.
func (t *Sent) Swappable(places rule.Places) bool {
	return t.where <= inBasicPassword || t.where == inQuery && places.Has(rule.InQuery)
}

// EndsAtColon reports whether a colon in the value would be read as its end (RFC 7617, 2).
func (t *Sent) EndsAtColon() bool { return t.where == inBasicUser }

// MaxTokens bounds the tokens of one request, and thereby its growth.
const MaxTokens = 64

// ErrMany refuses a request with more than [MaxTokens] tokens.
var ErrMany = errors.New("too many placeholders")

// Scan is the result of searching a request for tokens.
type Scan struct {
	Found []Sent
	Many  bool // there are more than [MaxTokens], and Found is incomplete
}

func (t *Scan) look(s string, where place, header string) {
	for {
		start, end := FindToken(s)
		if start < 0 {
			return
		}
		if len(t.Found) == MaxTokens {
			t.Many = true
			return
		}
		at := where
		if inEscape(s[:start]) {
			at = inEscaped
		}
		t.Found = append(t.Found, Sent{Text: s[start:end], Header: header, where: at})
		s = s[end:]
	}
}

// target searches a request target.
func (t *Scan) target(target string) {
	if start, _ := FindToken(target); start < 0 {
		return
	}
	path, query, _ := strings.Cut(target, "?")
	t.look(path, inTarget, "")
	for pair := range strings.FieldsFuncSeq(query, separates) {
		name, value, _ := strings.Cut(pair, "=")
		t.look(name, inTarget, "")
		t.look(value, inQuery, "")
	}
}

// separates reports whether some servers separate parameters of a query at c: all do at "&", some at ";".
func separates(c rune) bool { return c == '&' || c == ';' }

// field searches one field of a head.
func (t *Scan) field(name, value string, passed bool) {
	t.look(strings.ToLower(name), inField, "") // net/http writes names in another case
	if !passed {
		t.look(value, inField, name)
		return
	}
	if match.ShownHeader(name) {
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

// InRequest returns the tokens in an HTTP/1.x request head; head is its full text.
func InRequest(head []byte, r *h1.Request) (t Scan) {
	start, _ := FindTokenBytes(head)
	if start < 0 && !hasBasic(r) {
		return t
	}
	if start >= 0 {
		t.look(string(r.Method), inTarget, "")
		t.target(string(r.Target))
	}
	for i := range r.Fields {
		f := &r.Fields[i]
		t.field(string(f.Name), string(f.Value), f.Kind == h1.Other)
	}
	return t
}

// hasBasic reports whether a request has credentials of basic authentication, whose encoding hides tokens.
func hasBasic(r *h1.Request) bool {
	for i := range r.Fields {
		if f := &r.Fields[i]; h1.EqualFold(f.Name, "authorization") && len(f.Value) > 6 && h1.EqualFold(f.Value[:5], "basic") {
			return true
		}
	}
	return false
}

// InHTTP2Request returns the tokens in an HTTP/2 request. target is its path with the query, line contains its other
// pseudo-header fields.
func InHTTP2Request(fields []hpack.HeaderField, target string, line ...string) (t Scan) {
	t.target(target)
	for _, part := range line {
		t.look(part, inTarget, "")
	}
	for i := range fields {
		f := &fields[i]
		if !suspect(f) {
			continue
		}
		switch f := h1.NewField(f.Name, f.Value); f.Kind {
		case h1.Trailer:
			t.look(string(f.Value), inTrailer, "")
		case h1.HopByHop, h1.Expect:
			t.field(string(f.Name), string(f.Value), false)
		default:
			t.field(textproto.CanonicalMIMEHeaderKey(string(f.Name)), string(f.Value), true)
		}
	}
	return t
}

// suspect reports whether a field may contain a token, possibly hidden in credentials of basic authentication.
func suspect(f *hpack.HeaderField) bool {
	name, _ := FindToken(f.Name)
	value, _ := FindToken(f.Value)
	return name >= 0 || value >= 0 || f.Name == "authorization"
}

// InTrailer returns [ErrLate] if a trailer section contains a token.
func InTrailer(fields []h1.Field) error {
	for i := range fields {
		name, _ := FindTokenBytes(fields[i].Name)
		value, _ := FindTokenBytes(fields[i].Value)
		if name >= 0 || value >= 0 {
			return ErrLate
		}
	}
	return nil
}

// InHTTP2Trailer is [InTrailer] for HTTP/2.
func InHTTP2Trailer(fields []hpack.HeaderField) error {
	for i := range fields {
		name, _ := FindToken(fields[i].Name)
		value, _ := FindToken(fields[i].Value)
		if name >= 0 || value >= 0 {
			return ErrLate
		}
	}
	return nil
}

// ErrLate aborts a request whose head, and possibly part of its body, was already forwarded.
var ErrLate = errors.New("a placeholder in the body or a trailer")

// Swap is a token that was sent and the value that replaces it.
type Swap struct {
	Token, Value string
	Header       string // the header it was found in
}

// SwapField returns the value of a header with its tokens replaced.
func SwapField(name, value string, swaps []Swap) string {
	if start, _ := FindToken(value); start >= 0 {
		return swapText(value, swaps)
	}
	credentials, ok := basicOf(name, value)
	if !ok {
		return value
	}
	if start, _ := FindToken(credentials); start < 0 {
		return value // as encoded by the box
	}
	return value[:len("Basic ")] + base64.StdEncoding.EncodeToString([]byte(swapText(credentials, swaps)))
}

// swapText replaces in a single pass, so that values are never searched for tokens.
func swapText(s string, swaps []Swap) string {
	start, end := FindToken(s)
	if start < 0 {
		return s
	}
	var b strings.Builder
	for ; start >= 0; start, end = FindToken(s) {
		b.WriteString(s[:start])
		for i := range swaps {
			if swaps[i].Token == s[start:end] {
				b.WriteString(swaps[i].Value)
				break
			}
		}
		s = s[end:]
	}
	b.WriteString(s)
	return b.String()
}

// SwapTarget returns a request target with the tokens in its query replaced.
func SwapTarget(target string, swaps []Swap) string {
	if start, _ := FindToken(target); start < 0 || len(swaps) == 0 {
		return target
	}
	path, query, _ := strings.Cut(target, "?")
	escaped := slices.Clone(swaps)
	for i := range escaped {
		escaped[i].Value = Form.escape(escaped[i].Value)
	}
	return path + "?" + swapText(query, escaped)
}

// SwapFields replaces the tokens in the fields of a request that was judged.
func SwapFields(fields []h1.Field, swaps []Swap) {
	if len(swaps) == 0 {
		return
	}
	for i := range fields {
		if f := &fields[i]; f.Kind == h1.Other {
			f.Value = []byte(SwapField(string(f.Name), string(f.Value), swaps))
		}
	}
}

// SwapHTTP2 is [SwapFields] for HTTP/2.
func SwapHTTP2(fields []hpack.HeaderField, swaps []Swap) {
	if len(swaps) == 0 {
		return
	}
	for i := range fields {
		f := &fields[i]
		if v := SwapField(f.Name, f.Value, swaps); v != f.Value {
			f.Value, f.Sensitive = v, true
		}
	}
}

// basicOf decodes basic authentication credentials (RFC 7617) as leniently as any server might.
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

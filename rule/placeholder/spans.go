package placeholder

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/url"
	"slices"
	"strings"
)

// Syntax is the syntax of a text with tokens. It determines where values are allowed and how they are escaped.
type Syntax uint8

// The syntaxes.
const (
	Opaque Syntax = iota // tokens are not replaced
	Form                 // application/x-www-form-urlencoded, and the query of a URL: in the value of a field
	JSON                 // in a string that is not the name of a member
	Text                 // anywhere, unescaped
)

// SyntaxOf returns the syntax of a body by its Content-Type.
func SyntaxOf(contentType string) Syntax {
	kind, _, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil:
		return Opaque
	case kind == "application/x-www-form-urlencoded":
		return Form
	case kind == "application/json", strings.HasSuffix(kind, "+json"):
		return JSON
	}
	return Opaque
}

// Values returns the values of distinct tokens.
type Values func(tokens []string) ([]string, error)

// Replacement is a text with the values of its tokens, before it is written.
type Replacement struct {
	text  []byte
	at    spans    // of the tokens
	value []string // of each, escaped
	size  int
}

// Replace finds the tokens of a text and their values. The error is [ErrLate] if a token is where values are not allowed, [ErrMany] if there
// are more than [MaxTokens], or the error of values.
func Replace(text []byte, syntax Syntax, values Values) (r Replacement, err error) {
	r = Replacement{text: text, size: len(text)}
	start, end := FindTokenBytes(text)
	if start < 0 {
		return r, nil
	}
	in, err := placesOf(text, syntax)
	if err != nil {
		return r, err
	}
	for ; start >= 0; start, end = nextToken(text, end) {
		switch {
		case len(r.at) == MaxTokens:
			return r, ErrMany
		case !in.covers(start, end), inEscape(string(text[max(0, start-escapeWindow):start])):
			return r, ErrLate
		}
		r.at = append(r.at, span{start, end})
	}
	return r, r.fill(syntax, values)
}

// fill gets the values.
func (r *Replacement) fill(syntax Syntax, values Values) error {
	var tokens []string
	for _, t := range r.at {
		if token := string(r.text[t.start:t.end]); !slices.Contains(tokens, token) {
			tokens = append(tokens, token)
		}
	}
	found, err := values(tokens)
	if err != nil {
		return err
	}
	for i := range found {
		found[i] = syntax.escape(found[i])
	}
	for _, t := range r.at {
		v := found[slices.Index(tokens, string(r.text[t.start:t.end]))]
		r.value = append(r.value, v)
		r.size += len(v) - (t.end - t.start)
	}
	return nil
}

// Any reports whether there are tokens.
func (r *Replacement) Any() bool { return len(r.at) > 0 }

// Size returns the length of the written text.
func (r *Replacement) Size() int { return r.size }

// Bytes writes the text in a single pass, so that values are never searched for tokens. Without tokens it returns the original.
func (r *Replacement) Bytes() []byte {
	if !r.Any() {
		return r.text
	}
	out, at := make([]byte, 0, r.size), 0
	for i, t := range r.at {
		out = append(append(out, r.text[at:t.start]...), r.value[i]...)
		at = t.end
	}
	return append(out, r.text[at:]...)
}

// nextToken returns the position of the first token at or after an offset.
func nextToken(text []byte, at int) (start, end int) {
	if start, end = FindTokenBytes(text[at:]); start < 0 {
		return start, end
	}
	return start + at, end + at
}

// escape escapes a value for a text.
func (s Syntax) escape(v string) string {
	switch s {
	case Form:
		return strings.ReplaceAll(url.QueryEscape(v), "+", "%20") // which means the same in a query and in a form
	case JSON:
		return jsonEscapes.Replace(v)
	default:
		return v
	}
}

// jsonEscapes has all characters of values, which are visible ASCII, space and tab, that need an escape.
var jsonEscapes = strings.NewReplacer(`"`, `\"`, `\`, `\\`, "\t", `\t`)

// spans are parts of a text, in order.
type spans []span

type span struct{ start, end int }

// add adds a part, unless it is too short for a token: a text may have very many short parts.
func (s *spans) add(start, end int) {
	if end-start >= TokenLen {
		*s = append(*s, span{start, end})
	}
}

// covers reports whether one of the spans contains a part.
func (s *spans) covers(start, end int) bool {
	for len(*s) > 0 && (*s)[0].end < end {
		*s = (*s)[1:] // calls are in the order of tokens
	}
	return len(*s) > 0 && (*s)[0].start <= start
}

// placesOf returns the parts of a text where values are allowed.
func placesOf(text []byte, syntax Syntax) (spans, error) {
	switch syntax {
	case Form:
		return formValues(text), nil
	case JSON:
		return jsonValues(text)
	case Text:
		return spans{{0, len(text)}}, nil
	default:
		return nil, ErrLate
	}
}

// formValues returns the values of fields. Some servers separate fields at ";" as well, and read the text after it as a name.
func formValues(text []byte) (all spans) {
	for at := 0; at <= len(text); {
		end := len(text)
		if i := bytes.IndexAny(text[at:], "&;"); i >= 0 {
			end = at + i
		}
		if i := bytes.IndexByte(text[at:end], '='); i >= 0 {
			all.add(at+i+1, end)
		}
		at = end + 1
	}
	return all
}

// jsonValues returns the strings of a JSON text that are not names of members.
func jsonValues(text []byte) (all spans, err error) {
	if !json.Valid(text) {
		return nil, ErrLate
	}
	var objects []bool // whether each open bracket is that of an object
	name := false      // the next string is a name
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			name = text[i] == '{'
			objects = append(objects, name)
		case '}', ']':
			objects = objects[:len(objects)-1]
		case ':':
			name = false
		case ',':
			name = len(objects) > 0 && objects[len(objects)-1]
		case '"':
			end := stringEnd(text, i+1)
			if !name {
				all.add(i+1, end)
			}
			i = end
		}
	}
	return all, nil
}

// stringEnd returns the position of the closing quote of a string in valid JSON.
func stringEnd(text []byte, at int) int {
	for ; text[at] != '"'; at++ {
		if text[at] == '\\' {
			at++
		}
	}
	return at
}

// escapeWindow is the number of bytes before a token that are searched for an escape, which may be escaped itself.
const escapeWindow = 24

// escaped decodes escaped characters that begin an escape.
var escaped = strings.NewReplacer("%25", "%", "%5c", `\`, "%5C", `\`)

// inEscape reports whether a text ends within an escape of a URL (%4, %u00) or of JSON (\, \u00, \x4). The server would read the first bytes
// of a value after it as part of the escape. Masking would not find the remaining bytes in the response.
func inEscape(before string) bool {
	before = before[max(0, len(before)-escapeWindow):]
	for range 3 {
		before = escaped.Replace(before)
	}
	i := strings.LastIndexAny(before, `%\`)
	if i < 0 {
		return false
	}
	digits, rest := 2, before[i+1:]
	switch {
	case rest == "":
		return true
	case rest[0]|0x20 == 'u':
		digits, rest = 4, rest[1:]
	case before[i] == '\\' && rest[0]|0x20 == 'x':
		rest = rest[1:]
	case before[i] == '\\':
		return false
	}
	return len(rest) < digits && !strings.ContainsFunc(rest, func(c rune) bool { return c >= 0x80 || nibble(byte(c)) < 0 })
}

func nibble(c byte) int { return strings.IndexByte("0123456789abcdef", c|0x20) }

package placeholder

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/url"
	"strings"

	"boxgate/policy"
)

// Syntax is how a text that may have tokens is written: where in it a value may stand, and how it is escaped there.
type Syntax uint8

// The syntaxes.
const (
	Opaque Syntax = iota // nothing is replaced in it
	Form                 // application/x-www-form-urlencoded, and the query of a URL: in the value of a field
	JSON                 // in a string that is not the name of a member
	Text                 // anywhere, as it is
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

// Replace replaces the tokens in a text in a single pass. It returns [ErrLate] if one stands where no value may, and what
// value returns if that fails.
func Replace(text []byte, syntax Syntax, value func(token string) (string, error)) ([]byte, error) {
	start, end := policy.FindTokenBytes(text)
	if start < 0 {
		return text, nil
	}
	in, err := values(text, syntax)
	if err != nil {
		return nil, err
	}
	var out []byte
	at := 0
	for ; start >= 0; start, end = nextToken(text, at) {
		if !in.hold(start, end) {
			return nil, ErrLate
		}
		v, err := value(string(text[start:end]))
		if err != nil {
			return nil, err
		}
		out = append(append(out, text[at:start]...), syntax.escape(v)...)
		at = end
	}
	return append(out, text[at:]...), nil
}

// nextToken returns where the first token at or after an offset is.
func nextToken(text []byte, at int) (start, end int) {
	if start, end = policy.FindTokenBytes(text[at:]); start < 0 {
		return start, end
	}
	return start + at, end + at
}

// escape writes a value as it stands in a text.
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

// jsonEscapes has all that needs one: values are visible ASCII with spaces and tabs.
var jsonEscapes = strings.NewReplacer(`"`, `\"`, `\`, `\\`, "\t", `\t`)

// spans are parts of a text, in order.
type spans []span

type span struct{ start, end int }

// hold reports whether one of the spans has all of a part.
func (s *spans) hold(start, end int) bool {
	for len(*s) > 0 && (*s)[0].end < end {
		*s = (*s)[1:] // tokens are asked about in order
	}
	return len(*s) > 0 && (*s)[0].start <= start
}

// values returns where values may stand.
func values(text []byte, syntax Syntax) (spans, error) {
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

func formValues(text []byte) (all spans) {
	for at := 0; at <= len(text); {
		end := len(text)
		if i := bytes.IndexByte(text[at:], '&'); i >= 0 {
			end = at + i
		}
		if i := bytes.IndexByte(text[at:end], '='); i >= 0 {
			all = append(all, span{at + i + 1, end})
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
	name := false      // a string here is a name
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
				all = append(all, span{i + 1, end})
			}
			i = end
		}
	}
	return all, nil
}

// stringEnd returns where the quote is that ends a string of valid JSON.
func stringEnd(text []byte, at int) int {
	for ; text[at] != '"'; at++ {
		if text[at] == '\\' {
			at++
		}
	}
	return at
}

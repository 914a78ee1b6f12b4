package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"boxgate/policy/name"
)

// Kind is the type of a JSON value, as error messages name it.
type Kind string

// The types of JSON values.
const (
	Object Kind = "an object"
	List   Kind = "a list"
	Text   Kind = "a string"
	Number Kind = "a number"
	Bool   Kind = "true or false"
	Null   Kind = "null"
)

// Value is a JSON value with its members in their original order. encoding/json would accept keys in any case, and the last of
// duplicate keys.
type Value struct {
	Kind  Kind
	Text  string   // of a string, or a number in decimal
	Truth bool     // of true or false
	Items []Value  // of a list or object
	Keys  []string // of an object, one for each item
}

const maxDepth = 16

// Parse reads one JSON document strictly: valid UTF-8, no trailing data, no duplicate keys.
func Parse(data []byte, ps *Problems) (Value, bool) {
	if !utf8.Valid(data) {
		ps.Add("", "is not valid UTF-8")
		return Value{}, false
	}
	// The token reader below does not check that the whole document is valid.
	if err := json.Unmarshal(data, new(json.RawMessage)); err != nil {
		ps.Add("", "%s", jsonFlaw(err))
		return Value{}, false
	}
	v, err := readValue(json.NewDecoder(bytes.NewReader(data)), "", ps, 0)
	if err != nil {
		ps.Add("", "%s", err)
	}
	return v, err == nil
}

// jsonFlaw describes the mistake in the JSON without quoting it.
func jsonFlaw(err error) string {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("is not valid JSON (at byte %d)", e.Offset)
	}
	return "is not valid JSON"
}

func readValue(d *json.Decoder, at string, ps *Problems, depth int) (Value, error) {
	if depth > maxDepth {
		return Value{}, errors.New("is nested too deeply")
	}
	token, err := d.Token()
	if err != nil {
		return Value{}, err
	}
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			return readObject(d, at, ps, depth)
		}
		return readList(d, at, ps, depth)
	case string:
		return Value{Kind: Text, Text: t}, nil
	case float64:
		return Value{Kind: Number, Text: strconv.FormatFloat(t, 'f', -1, 64)}, nil
	case bool:
		return Value{Kind: Bool, Truth: t}, nil
	}
	return Value{Kind: Null}, nil
}

func readObject(d *json.Decoder, at string, ps *Problems, depth int) (Value, error) {
	v := Value{Kind: Object}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return Value{}, err
		}
		key, ok := token.(string)
		if !ok {
			return Value{}, errors.New("is not valid JSON")
		}
		if seen[key] {
			ps.Add(Pointer(at, key), "duplicate key %s", name.Quote(key))
		}
		seen[key] = true
		item, err := readValue(d, Pointer(at, key), ps, depth+1)
		if err != nil {
			return Value{}, err
		}
		v.Keys, v.Items = append(v.Keys, key), append(v.Items, item)
	}
	_, err := d.Token()
	return v, err
}

func readList(d *json.Decoder, at string, ps *Problems, depth int) (Value, error) {
	v := Value{Kind: List}
	for d.More() {
		item, err := readValue(d, Element(at, len(v.Items)), ps, depth+1)
		if err != nil {
			return Value{}, err
		}
		v.Items = append(v.Items, item)
	}
	_, err := d.Token()
	return v, err
}

// Fields calls the function of each member's key in known. An unknown key is a problem whose message contains the nearest known
// one. want describes the object in messages.
func (v Value) Fields(at, want string, ps *Problems, known map[string]func(at string, v Value)) {
	if v.Kind != Object {
		ps.Add(at, "is %s; want %s", v.Kind, want)
		return
	}
	for i, key := range v.Keys {
		if read, ok := known[key]; ok {
			read(Pointer(at, key), v.Items[i])
			continue
		}
		near, shown := Nearest(key, known), name.Shown(key, name.IsToken)
		if near != "" {
			ps.Add(Pointer(at, shown), "unknown key %s; use %q", name.Quote(shown), near)
		} else {
			ps.Add(Pointer(at, shown), "unknown key %s", name.Quote(shown))
		}
	}
}

// AsString returns the text of a string.
func (v Value) AsString(at string, ps *Problems) string {
	if v.Kind != Text {
		ps.Add(at, "is %s; want a string", v.Kind)
	}
	return v.Text
}

// AsStrings returns a list of strings, never nil if a list was given. An element that is not a string is a problem, and
// "" in the result, so that the others keep their index.
func (v Value) AsStrings(at string, ps *Problems) []string {
	if v.Kind != List {
		ps.Add(at, "is %s; want a list of strings", v.Kind)
		return nil
	}
	out := make([]string, len(v.Items))
	for i, item := range v.Items {
		out[i] = item.AsString(Element(at, i), ps)
	}
	return out
}

// Has reports whether an object has a key.
func (v Value) Has(key string) bool {
	for _, k := range v.Keys {
		if k == key {
			return true
		}
	}
	return false
}

// Nearest returns the known key that differs from key only in case and separators or by two letters at most, or "".
func Nearest[T any](key string, known map[string]T) string {
	best, least := "", 3
	for k := range known {
		d := distance(foldKey(key), foldKey(k))
		if d < least || d == least && best != "" && k < best {
			best, least = k, d
		}
	}
	if least >= len(foldKey(key)) {
		return ""
	}
	return best
}

func foldKey(key string) string {
	if len(key) > 64 {
		key = key[:64]
	}
	return strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(key), "_", ""), "-", "")
}

// distance returns the number of letters to insert, remove or replace (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}

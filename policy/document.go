package policy

import (
	"boxgate/policy/name"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// kind is the type of a JSON value, as error messages name it.
type kind string

const (
	kindObject kind = "an object"
	kindList   kind = "a list"
	kindText   kind = "a string"
	kindNumber kind = "a number"
	kindBool   kind = "true or false"
	kindNull   kind = "null"
)

// value is a JSON value with its members in the order they were written. encoding/json alone would accept keys in any
// case, and take the last of duplicate keys.
type value struct {
	kind  kind
	text  string   // of a string, or a number in decimal
	truth bool     // of true or false
	items []value  // of a list or object
	keys  []string // of an object, one for each item
}

const maxDepth = 16

// parseDocument reads one JSON document strictly: valid UTF-8, no trailing data, no duplicate keys.
func parseDocument(data []byte, ps *problems) (value, bool) {
	if !utf8.Valid(data) {
		ps.add("", "is not valid UTF-8")
		return value{}, false
	}
	// The token reader below does not check that the document is valid as a whole.
	if err := json.Unmarshal(data, new(json.RawMessage)); err != nil {
		ps.add("", "%s", jsonFlaw(err))
		return value{}, false
	}
	v, err := readValue(json.NewDecoder(bytes.NewReader(data)), "", ps, 0)
	if err != nil {
		ps.add("", "%s", err)
	}
	return v, err == nil
}

// jsonFlaw says what is wrong with the JSON, without quoting any of it.
func jsonFlaw(err error) string {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("is not valid JSON (at byte %d)", e.Offset)
	}
	return "is not valid JSON"
}

func readValue(d *json.Decoder, at string, ps *problems, depth int) (value, error) {
	if depth > maxDepth {
		return value{}, errors.New("is nested too deeply")
	}
	token, err := d.Token()
	if err != nil {
		return value{}, err
	}
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			return readObject(d, at, ps, depth)
		}
		return readList(d, at, ps, depth)
	case string:
		return value{kind: kindText, text: t}, nil
	case float64:
		return value{kind: kindNumber, text: strconv.FormatFloat(t, 'f', -1, 64)}, nil
	case bool:
		return value{kind: kindBool, truth: t}, nil
	}
	return value{kind: kindNull}, nil
}

func readObject(d *json.Decoder, at string, ps *problems, depth int) (value, error) {
	v := value{kind: kindObject}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return value{}, err
		}
		key, ok := token.(string)
		if !ok {
			return value{}, errors.New("is not valid JSON")
		}
		if seen[key] {
			ps.add(pointer(at, key), "duplicate key %s", name.Quote(key))
		}
		seen[key] = true
		item, err := readValue(d, pointer(at, key), ps, depth+1)
		if err != nil {
			return value{}, err
		}
		v.keys, v.items = append(v.keys, key), append(v.items, item)
	}
	_, err := d.Token()
	return v, err
}

func readList(d *json.Decoder, at string, ps *problems, depth int) (value, error) {
	v := value{kind: kindList}
	for d.More() {
		item, err := readValue(d, element(at, len(v.items)), ps, depth+1)
		if err != nil {
			return value{}, err
		}
		v.items = append(v.items, item)
	}
	_, err := d.Token()
	return v, err
}

// fields walks the members of an object. Each key must be one of known, whose function reads it; an unknown key is a
// problem that names the nearest known one. want describes the object in messages.
func (v value) fields(at, want string, ps *problems, known map[string]func(at string, v value)) {
	if v.kind != kindObject {
		ps.add(at, "is %s; want %s", v.kind, want)
		return
	}
	for i, key := range v.keys {
		if read, ok := known[key]; ok {
			read(pointer(at, key), v.items[i])
			continue
		}
		near, shown := nearest(key, known), name.Shown(key, name.IsToken)
		if near != "" {
			ps.add(pointer(at, shown), "unknown key %s; use %q", name.Quote(shown), near)
		} else {
			ps.add(pointer(at, shown), "unknown key %s", name.Quote(shown))
		}
	}
}

// string returns the text of a string.
func (v value) string(at string, ps *problems) string {
	if v.kind != kindText {
		ps.add(at, "is %s; want a string", v.kind)
	}
	return v.text
}

// strings returns a list of strings, never nil if a list was given. An element that is not a string is a problem, and
// "" in the result, so that the others keep their index.
func (v value) strings(at string, ps *problems) []string {
	if v.kind != kindList {
		ps.add(at, "is %s; want a list of strings", v.kind)
		return nil
	}
	out := make([]string, len(v.items))
	for i, item := range v.items {
		out[i] = item.string(element(at, i), ps)
	}
	return out
}

// has reports whether an object has a key.
func (v value) has(key string) bool {
	for _, k := range v.keys {
		if k == key {
			return true
		}
	}
	return false
}

// nearest returns the known key that differs from key only in case and separators or by two letters at most, or "".
func nearest[T any](key string, known map[string]T) string {
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

// distance is the number of letters to insert, remove or replace (Levenshtein).
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

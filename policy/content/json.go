package content

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// Bounds of a JSON document.
const (
	maxDepth  = 64
	maxValues = 1 << 16
	keptDepth = 4   // deeper values are checked and dropped, and so are lists other than a batch
	maxKeys   = 256 // of an object that is kept
)

// value is a JSON value with its members in their original order.
type value struct {
	kind  byte   // one of { [ " 0 t n
	text  string // of a string or number
	keys  []string
	items []value
}

const (
	errUTF8      = flaw("the body is not valid UTF-8")
	errJSON      = flaw("the body is not one valid JSON document")
	errSurrogate = flaw("the body has half of a surrogate pair")
	errKeys      = flaw("the body has duplicate keys")
	errLarge     = flaw("the body is nested too deeply or has too many values")
	errSpelling  = flaw("a key of the message differs from the specified one in case or separators only, or is unknown")
)

// parseJSON reads one JSON document that all parsers read alike (RFC 8259, 4 and 8).
func parseJSON(data []byte) (value, error) {
	switch {
	case !utf8.Valid(data):
		return value{}, errUTF8
	case !json.Valid(data): // also with trailing data or a BOM
		return value{}, errJSON
	case halfSurrogate(data):
		return value{}, errSurrogate
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	r := reader{d, maxValues}
	return r.value(0)
}

// halfSurrogate reports whether an escape of valid JSON is half of a surrogate pair. Parsers replace, keep or refuse it.
func halfSurrogate(data []byte) bool {
	for {
		i := bytes.IndexByte(data, '\\')
		if i < 0 {
			return false
		}
		unit, ok := escaped(data[i:])
		if !ok {
			data = data[i+2:]
			continue
		}
		data = data[i+6:]
		switch {
		case unit&0xfc00 == 0xd800:
			low, ok := escaped(data)
			if !ok || low&0xfc00 != 0xdc00 {
				return true
			}
			data = data[6:]
		case unit&0xfc00 == 0xdc00:
			return true
		}
	}
}

// escaped returns the UTF-16 unit of an escape \uXXXX at the beginning of data.
func escaped(data []byte) (unit uint16, ok bool) {
	if len(data) < 6 || data[0] != '\\' || data[1] != 'u' {
		return 0, false
	}
	for _, c := range data[2:6] {
		unit = unit<<4 | uint16(strings.IndexByte("0123456789abcdef", c|0x20))&15
	}
	return unit, true
}

// reader reads the tokens of a valid document.
type reader struct {
	*json.Decoder
	left int // number of values that may still come
}

func (r *reader) value(depth int) (v value, err error) {
	token, err := r.Token()
	if err != nil {
		return value{}, errJSON
	}
	if r.left--; r.left < 0 || depth > maxDepth {
		return value{}, errLarge
	}
	switch t := token.(type) {
	case json.Delim:
		v.kind = byte(t)
		if err := r.members(&v, depth); err != nil {
			return value{}, err
		}
	case string:
		v.kind, v.text = '"', t
	case json.Number:
		v.kind, v.text = '0', t.String()
	case bool:
		v.kind = 't'
	default:
		v.kind = 'n'
	}
	return v, nil
}

// members reads the rest of a list or object.
func (r *reader) members(v *value, depth int) error {
	keep := depth == 0 || v.kind == '{' && depth < keptDepth
	seen := map[string]bool{}
	for r.More() {
		if v.kind == '{' {
			key, err := r.key(seen)
			if err != nil {
				return err
			}
			if keep {
				v.keys = append(v.keys, key)
			}
		}
		item, err := r.value(depth + 1)
		if err != nil {
			return err
		}
		if keep {
			v.items = append(v.items, item)
		}
		if len(v.items) > maxKeys {
			return errLarge
		}
	}
	if _, err := r.Token(); err != nil {
		return errJSON
	}
	return nil
}

// key reads the next key of an object.
func (r *reader) key(seen map[string]bool) (string, error) {
	token, err := r.Token()
	key, ok := token.(string)
	switch {
	case err != nil || !ok:
		return "", errJSON
	case seen[key]:
		return "", errKeys
	}
	seen[key] = true
	return key, nil
}

// get returns a member of an object, or the zero value.
func (v *value) get(key string) value {
	for i, k := range v.keys {
		if k == key {
			return v.items[i]
		}
	}
	return value{}
}

// misspells reports whether an object has a key that some servers take for a known one: libraries ignore case (encoding/json), and
// some "_" and "-" as well. In JavaScript, a copied "__proto__" has all keys.
func (v *value) misspells(known ...string) bool {
	for _, k := range v.keys {
		if k == "__proto__" {
			return true
		}
		for _, want := range known {
			if k != want && strings.EqualFold(bare(k), bare(want)) {
				return true
			}
		}
	}
	return false
}

var separators = strings.NewReplacer("_", "", "-", "", ".", "", " ", "")

func bare(key string) string { return separators.Replace(key) }

// hasOnly reports whether every key of an object is known.
func (v *value) hasOnly(known ...string) bool {
	for _, k := range v.keys {
		found := false
		for _, want := range known {
			found = found || k == want
		}
		if !found {
			return false
		}
	}
	return true
}

// batch returns the elements of a list, or v itself.
func (v *value) batch() ([]value, error) {
	if v.kind != '[' {
		return []value{*v}, nil
	}
	if len(v.items) == 0 || len(v.items) > maxBatch {
		return nil, errBatch
	}
	return v.items, nil
}

// Package strict decodes JSON bodies exactly as their Go types declare them. An unknown, duplicate or mistyped field is
// an error with a JSON pointer, never dropped, and all problems of a body are reported together.
package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"boxgate/api/problem"
	"boxgate/policy/document"
	"boxgate/quota"
)

// maxDepth bounds the nesting of a body.
const maxDepth = 32

// Unmarshal is json.Unmarshal without its leniency: keys must match exactly, and unknown or duplicate keys, null, invalid
// UTF-8 and trailing data are refused.
func Unmarshal(data []byte, v any) error {
	return unmarshal(data, v, func(int64) error { return nil })
}

// unmarshal implements Unmarshal. It calls claim before it decodes values that take more memory than their text: an empty
// object of two bytes may become a large struct.
func unmarshal(data []byte, v any, claim func(n int64) error) error {
	if err := check(data, reflect.TypeOf(v).Elem(), claim); err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return problem.Invalid(fieldPointer(wrong.Field), "%s does not fit", problem.Clip(wrong.Value))
		}
		return problem.Refuse(http.StatusBadRequest, "the body is not valid JSON")
	}
	return nil
}

// Check returns the error of [Unmarshal] for a value of any type.
func Check(data []byte) error { return check(data, nil, func(int64) error { return nil }) }

// check checks a body against a type. nil allows any.
func check(data []byte, t reflect.Type, claim func(n int64) error) error {
	if !utf8.Valid(data) {
		return problem.Refuse(http.StatusBadRequest, "the body is not valid UTF-8")
	}
	c := &checker{dec: json.NewDecoder(bytes.NewReader(data)), claim: claim}
	c.dec.UseNumber()
	if err := c.value("", t, 0); err != nil {
		return malformed(c.dec, err)
	}
	if _, err := c.dec.Token(); !errors.Is(err, io.EOF) {
		return problem.Refuse(http.StatusBadRequest, "unexpected data after JSON value at byte %d", c.dec.InputOffset())
	}
	if len(c.problems) > 0 {
		return &document.InvalidError{Problems: c.problems}
	}
	return nil
}

var errTooDeep = errors.New("the body is nested too deeply")

func malformed(dec *json.Decoder, err error) error {
	if _, ok := errors.AsType[*quota.Error](err); ok {
		return err
	}
	if errors.Is(err, errTooDeep) {
		return problem.Refuse(http.StatusBadRequest, "%v", err)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return problem.Refuse(http.StatusBadRequest, "the body is empty or incomplete; send a JSON value")
	}
	return problem.Refuse(http.StatusBadRequest, "the body is not valid JSON at byte %d", dec.InputOffset())
}

// fieldPointer converts the field path of encoding/json to a JSON pointer.
func fieldPointer(field string) string {
	if field == "" {
		return ""
	}
	return "/" + strings.ReplaceAll(field, ".", "/")
}

// checker walks a JSON text along the corresponding Go type and collects mismatches.
type checker struct {
	dec      *json.Decoder
	problems []document.Problem
	claim    func(n int64) error // claims memory
	size     int64               // size of the decoded values not claimed yet
}

// freeValues is the total size of decoded values that is exempt from claims.
const freeValues = 64 << 10

// grow claims memory for a value before it is decoded. The factor of 2 allows for slices and maps, which grow by
// doubling.
func (c *checker) grow(size uintptr) error {
	if c.size += 2 * int64(size); c.size < freeValues {
		return nil
	}
	n := c.size
	c.size = 0
	return c.claim(n)
}

// memberSize is the memory of an object's member without its value, during the check and in a map.
const memberSize = 64

// sizeOf returns the memory of an element of a type.
func sizeOf(t reflect.Type) uintptr {
	switch {
	case t == nil:
		return memberSize
	case t.Kind() == reflect.Pointer:
		return t.Size() + t.Elem().Size()
	}
	return t.Size()
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// value checks the next value against t. A nil t allows any type; only duplicate keys and depth are checked then. It
// returns an error if the JSON is malformed; mismatches are added to the problems.
func (c *checker) value(pointer string, t reflect.Type, depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	token, err := c.dec.Token()
	if err != nil {
		return err
	}
	return c.begun(token, pointer, checked(t), depth)
}

// checked returns the type that a value is checked against.
func checked(t reflect.Type) reflect.Type {
	if t != nil && reflect.PointerTo(t).Implements(unmarshaler) {
		return nil // it decodes its own JSON
	}
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// begun is value for a value whose first token was read.
func (c *checker) begun(token json.Token, pointer string, t reflect.Type, depth int) error {
	if t != nil && !fits(token, t) {
		c.add(pointer, "expected %s, got %s", kindName(t), tokenName(token))
		t = nil
	}
	switch token {
	case json.Delim('{'):
		return c.object(pointer, t, depth)
	case json.Delim('['):
		return c.array(pointer, t, depth)
	}
	return nil
}

func (c *checker) object(pointer string, t reflect.Type, depth int) error {
	seen := make(map[string]bool)
	for c.dec.More() {
		token, err := c.dec.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string)
		at := pointer + "/" + problem.EscapeKey(key)
		if seen[key] {
			c.add(at, "duplicate key")
		}
		seen[key] = true
		if err := c.grow(memberSize + sizeOf(mapped(t))); err != nil {
			return err
		}
		if err := c.value(at, c.member(at, t, key), depth+1); err != nil {
			return err
		}
	}
	_, err := c.dec.Token()
	return err
}

// mapped returns the type of the values of a map. It returns nil for other types: the fields of a struct are part of the
// struct's size.
func mapped(t reflect.Type) reflect.Type {
	if t == nil || t.Kind() != reflect.Map {
		return nil
	}
	return t.Elem()
}

// member returns the type of an object's member, or nil if any type is allowed or the member is unknown.
func (c *checker) member(at string, t reflect.Type, key string) reflect.Type {
	if t == nil {
		return nil
	}
	if t.Kind() == reflect.Map {
		return t.Elem()
	}
	fields := FieldsOf(t)
	if i := slices.IndexFunc(fields, func(f Field) bool { return f.Name == key }); i >= 0 {
		return fields[i].Type
	}
	if near := nearest(key, fields); near != "" {
		c.add(at, "unknown field; did you mean %q?", near)
	} else {
		c.add(at, "unknown field")
	}
	return nil
}

func (c *checker) array(pointer string, t reflect.Type, depth int) error {
	if t != nil {
		t = t.Elem()
	}
	if depth+1 > maxDepth && c.dec.More() {
		return errTooDeep
	}
	size, want := sizeOf(t), checked(t)
	for i := 0; c.dec.More(); i++ {
		if err := c.grow(size); err != nil {
			return err
		}
		token, err := c.dec.Token()
		if err != nil {
			return err
		}
		if _, nested := token.(json.Delim); !nested && (want == nil || fits(token, want)) {
			continue // without a pointer, which is only needed for problems: lists of policies are long
		}
		if err := c.begun(token, pointer+"/"+strconv.Itoa(i), want, depth+1); err != nil {
			return err
		}
	}
	_, err := c.dec.Token()
	return err
}

// add records a problem, up to a hundred.
func (c *checker) add(pointer, format string, args ...any) {
	if len(c.problems) < 100 {
		c.problems = append(c.problems, document.Problem{Pointer: problem.Clip(pointer), Message: fmt.Sprintf(format, args...)})
	}
}

// fits reports whether a value of type t can begin with the token. null is never valid; optional fields must be left out
// instead.
func fits(token json.Token, t reflect.Type) bool {
	switch token := token.(type) {
	case json.Delim:
		if token == '[' {
			return t.Kind() == reflect.Slice
		}
		return t.Kind() == reflect.Struct || t.Kind() == reflect.Map
	case string:
		return t.Kind() == reflect.String
	case bool:
		return t.Kind() == reflect.Bool
	case json.Number:
		return IsInteger(t) && !strings.ContainsAny(token.String(), ".eE")
	}
	return false
}

// IsInteger reports whether t is an integer type.
func IsInteger(t reflect.Type) bool { return t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64 }

func kindName(t reflect.Type) string {
	switch {
	case IsInteger(t):
		return "an integer"
	case t.Kind() == reflect.Slice:
		return "an array"
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Map:
		return "an object"
	case t.Kind() == reflect.Bool:
		return "true or false"
	}
	return "a string"
}

func tokenName(token json.Token) string {
	switch token := token.(type) {
	case json.Delim:
		if token == '[' {
			return "an array"
		}
		return "an object"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	}
	return "null"
}

// Field is one JSON field of a struct.
type Field struct {
	Name     string
	Type     reflect.Type
	Required bool  // always present in a response, whatever its value
	Index    []int // of the field, for reflect.Value.FieldByIndex
	Tag      reflect.StructTag
}

// FieldsOf lists the fields of a struct type that have a json tag, including fields of embedded structs, and the members
// of an [Extended] type, which have no Index.
func FieldsOf(t reflect.Type) []Field {
	var fields []Field
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			for _, inner := range FieldsOf(f.Type) {
				inner.Index = slices.Concat(f.Index, inner.Index)
				fields = append(fields, inner)
			}
		case name != "" && name != "-":
			fields = append(fields, Field{name, f.Type, !strings.Contains(options, "omit"), f.Index, f.Tag})
		}
	}
	if e, ok := reflect.Zero(t).Interface().(Extended); ok {
		for _, f := range e.Members() {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if slices.ContainsFunc(fields, func(f Field) bool { return f.Name == name }) { // already listed by an embedded struct
				continue
			}
			fields = append(fields, Field{name, f.Type, !strings.Contains(options, "omit"), nil, f.Tag})
		}
	}
	return fields
}

// Extended is implemented by structs that encode more JSON members than they have fields.
type Extended interface{ Members() []reflect.StructField }

// nearest returns the field whose name differs only in case and separators, or "".
func nearest(key string, fields []Field) string {
	plain := strings.NewReplacer("_", "", "-", "")
	want := strings.ToLower(plain.Replace(key))
	for _, f := range fields {
		if plain.Replace(f.Name) == want {
			return f.Name
		}
	}
	return ""
}

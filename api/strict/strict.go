package strict

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
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
	if !utf8.Valid(data) {
		return problem.Refuse(http.StatusBadRequest, "the body is not valid UTF-8")
	}
	c := &checker{dec: json.NewDecoder(strings.NewReader(string(data))), claim: claim}
	c.dec.UseNumber()
	if err := c.value("", reflect.TypeOf(v).Elem(), 0); err != nil {
		return malformed(c.dec, err)
	}
	if _, err := c.dec.Token(); !errors.Is(err, io.EOF) {
		return problem.Refuse(http.StatusBadRequest, "unexpected data after JSON value at byte %d", c.dec.InputOffset())
	}
	if len(c.problems) > 0 {
		return &document.InvalidError{Problems: c.problems}
	}
	if err := json.Unmarshal(data, v); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return problem.Invalid(fieldPointer(wrong.Field), "%s does not fit", problem.Clip(wrong.Value))
		}
		return problem.Refuse(http.StatusBadRequest, "the body is not valid JSON")
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

package api

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"boxgate/policy"
)

// maxDepth is how deep a body may nest.
const maxDepth = 32

// bodyTimeout is how long a client may take to send a body.
const bodyTimeout = 30 * time.Second

// readBody reads the JSON body of a request, within the size limit and a deadline.
func (a *API) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if r.Header.Get("Content-Type") != "" && (err != nil || media != "application/json") {
		return nil, refuse(http.StatusUnsupportedMediaType, "the body must be JSON; send Content-Type: application/json")
	}
	rc := http.NewResponseController(w)
	// Where deadlines are not supported (a test recorder), only the size limit applies.
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout))
	defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, a.MaxBody))
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, refuse(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	}
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "the body is incomplete")
	}
	return data, nil
}

// decode reads the body of a request into v, which points to a struct or map. Everything that is not exactly as
// declared is refused, and the error lists all problems.
func (a *API) decode(w http.ResponseWriter, r *http.Request, v any) error {
	data, err := a.readBody(w, r)
	if err != nil {
		return err
	}
	return unmarshalStrict(data, v)
}

// unmarshalStrict is json.Unmarshal without its leniency: keys are compared exactly, and unknown or duplicate keys,
// null, invalid UTF-8 and trailing data are refused.
func unmarshalStrict(data []byte, v any) error {
	if !utf8.Valid(data) {
		return refuse(http.StatusBadRequest, "the body is not valid UTF-8")
	}
	c := &checker{dec: json.NewDecoder(strings.NewReader(string(data)))}
	c.dec.UseNumber()
	if err := c.value("", reflect.TypeOf(v).Elem(), 0); err != nil {
		return malformed(c.dec, err)
	}
	if _, err := c.dec.Token(); !errors.Is(err, io.EOF) {
		return refuse(http.StatusBadRequest, "unexpected data after JSON value at byte %d", c.dec.InputOffset())
	}
	if len(c.problems) > 0 {
		return &policy.InvalidError{Problems: c.problems}
	}
	if err := json.Unmarshal(data, v); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return invalid(fieldPointer(wrong.Field), "%s does not fit", clip(wrong.Value))
		}
		return refuse(http.StatusBadRequest, "the body is not valid JSON")
	}
	return nil
}

var errTooDeep = errors.New("the body is nested too deeply")

func malformed(dec *json.Decoder, err error) error {
	if errors.Is(err, errTooDeep) {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return refuse(http.StatusBadRequest, "the body is empty or incomplete; send a JSON value")
	}
	return refuse(http.StatusBadRequest, "the body is not valid JSON at byte %d", dec.InputOffset())
}

// fieldPointer turns the field path of encoding/json into a JSON pointer.
func fieldPointer(field string) string {
	if field == "" {
		return ""
	}
	return "/" + strings.ReplaceAll(field, ".", "/")
}

package document

import (
	"encoding/json"
	"reflect"
	"testing"
)

// record is a document of the tests.
type record struct {
	Mode  string   `json:"mode"`
	List  []string `json:"list,omitempty"`
	Inner *record  `json:"inner,omitempty"`
}

// TestDecode checks that a document with a possibly different meaning is refused.
func TestDecode(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		`{"mode":"a","list":["b","c"],"inner":{"mode":"d"}}`: true, `{}`: true, "{\"mode\":\"a\"}\n": true,
		`{"mode":"a","mode":"b"}`: false, `{"mode":"a","Mode":"b"}`: false, `{"inner":{"mode":"a","MODE":"b"}}`: false,
		`{"mod":"a"}`: false, `{"inner":{"x":1}}`: false, `{"mode":1}`: false, `{"list":"a"}`: false, `{"list":[1]}`: false,
		`{"mode":"a"}{}`: false, `{"mode":"a"} x`: false, `{"mode":"a"`: false, `{"mode"`: false, `{"list":["a"`: false, `{"inner":{`: false,
		``: false, `[`: false, `{"mode" "a"}`: false, `{1:2}`: false, "{\"mode\":\"\x00\"}": false,
	} {
		var r record
		if err := Decode([]byte(text), &r); (err == nil) != ok {
			t.Errorf("%s: %+v, %v", text, r, err)
		}
	}
}

// FuzzDecode checks that accepted documents survive a round trip, and that decoding never panics.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{`{"mode":"a","list":["b"],"inner":{"mode":"c"}}`, `{"mode":"a","Mode":"b"}`, `[[[`, `{"inner":null}`, "{\"\\ud800\":1}", `{"list":[]}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r, again record
		if Decode(data, &r) != nil {
			return
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := Decode(text, &again); err != nil {
			t.Fatalf("%q was accepted, and its own encoding %s is not: %v", data, text, err)
		}
		if second, err := json.Marshal(again); err != nil || !reflect.DeepEqual(second, text) {
			t.Errorf("%q became %s, then %s, %v", data, text, second, err)
		}
	})
}

package boxes

import (
	"encoding/json"
	"strings"
	"testing"

	"boxgate/api/strict"
)

// FuzzUnmarshalStrict checks the strict decoder against encoding/json: a body that it accepts is also accepted by a
// Decoder with DisallowUnknownFields.
func FuzzUnmarshalStrict(f *testing.F) {
	for _, body := range []string{`{}`, `{"name":"x"}`, `{"NAME":"x"}`, `{"labels":["a"]}`, `{"ttl":1}`, `{"ttl":1e2}`, `{"env_vars":{"A":"b","A":"c"}}`, `{"custom_runner":{}}`, ` {} `, `{}{}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var exact, plain createBody
		if strict.Unmarshal(body, &exact) != nil {
			return
		}
		dec := json.NewDecoder(strings.NewReader(string(body)))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&plain); err != nil {
			t.Errorf("%q is accepted but encoding/json says %v", body, err)
		}
	})
}

// FuzzAttach checks that an accepted body identifies a sandbox.
func FuzzAttach(f *testing.F) {
	f.Add(`{"netns":"/run/netns/x","pid":3,"container":"c"}`)
	f.Fuzz(func(t *testing.T, text string) {
		var body attachBody
		if json.Unmarshal([]byte(text), &body) != nil {
			return
		}
		req, err := body.request(nil)
		if err == nil && (req.Kind == "" || req.Ref == "") {
			t.Errorf("%s was accepted as nothing", text)
		}
	})
}

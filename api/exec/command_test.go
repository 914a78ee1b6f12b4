package exec

import (
	"testing"

	"boxgate/api/strict"
)

// FuzzExec checks that an accepted command has a program and an absolute directory.
func FuzzExec(f *testing.F) {
	for _, body := range []string{`{"command":["true"]}`, `{"command":["true"],"folder":"../x","timeout":1}`, `{"command":[""]}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var in execBody
		if strict.Unmarshal(body, &in) != nil {
			return
		}
		req, err := in.request()
		if err == nil && (len(req.Command) == 0 || req.Command[0] == "" || req.Dir[0] != '/') {
			t.Errorf("%q was accepted as %+v", body, req)
		}
	})
}

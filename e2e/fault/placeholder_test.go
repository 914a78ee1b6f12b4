package fault

import (
	"fmt"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
)

// A change that fails after it was applied leaves the box unchanged: its variables contain their tokens, and a request
// with one reaches the server with the secret.
func TestPlaceholdersSurviveAFailedChange(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	box := w.Create(map[string]any{
		"network_policy": narrow,
		"attach_headers": map[string]any{"api.example.com": map[string]any{"placeholders": map[string]string{"API_KEY": harness.TestSecret}}},
	})
	global := map[string]any{"www.example.com": map[string]any{"placeholders": map[string]string{"WWW_KEY": harness.TestSecret}}}
	if err := w.Client.Do(t.Context(), "PUT", "/v2/box/settings/attach-headers", global, nil); err != nil {
		t.Fatal(err)
	}
	tokens := w.MustSh(box, "printenv API_KEY WWW_KEY")
	for i, c := range []struct {
		step, path string
		body       map[string]any
	}{
		{"change: in force", api.BoxPath(box, "config/network-policy"), wide},
		{"change: in force", api.BoxPath(box, "config/attach-headers"), map[string]any{}},
	} {
		for _, kind := range []string{harness.FaultError, harness.FaultPanic} {
			what := kind + " at " + c.step
			if err := failing(w, kind, c.step, func() error { return w.Client.Do(t.Context(), "PUT", c.path, c.body, nil) }); err == nil {
				t.Errorf("%s: the answer was a success", what)
			}
			if now, _ := w.Sh(box, "printenv API_KEY WWW_KEY"); now != tokens {
				t.Errorf("%s: the box sees %q, before %q", what, now, tokens)
			}
			path := fmt.Sprintf("/%d-%s", i, kind)
			w.Sh(box, `curl -sS -o /dev/null -H "X-Key: `+strings.Fields(tokens)[0]+`" https://api.example.com`+path)
			if seen := w.Net.Received("api.example.com", testnet.Path(path)); len(seen) != 1 || seen[0].Header.Get("X-Key") != harness.TestSecret {
				t.Errorf("%s: the server received %+v", what, seen)
			}
		}
	}
	s.assertHolds()
}

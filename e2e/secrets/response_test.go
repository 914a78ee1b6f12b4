package secrets

import (
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// TestResponseFieldsFromABox: a box does not receive the fields that a rule removes from responses, by either version
// of HTTP. Responses of other hosts keep theirs.
func TestResponseFieldsFromABox(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]any{"response_headers": map[string]any{"remove": []string{"date"}}}},
	})
	runs := w.ShEach(box,
		"curl -sSi --http1.1 https://api.example.com/", "curl -sSi --http2 https://api.example.com/", "curl -sSi https://www.example.com/")
	for i, run := range runs {
		if got := strings.ToLower(run.Out); !strings.Contains(got, " 200") || strings.Contains(got, "\ndate:") != (i == 2) {
			t.Errorf("%d: %s", i, run.Out)
		}
	}
}

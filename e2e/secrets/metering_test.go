package secrets

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestMeteredModelsFromABox: an agent asks a model in a stream with a key that it never has, over both versions of HTTP; other models, batches and
// WebSockets are refused in the form of the vendor's errors.
func TestMeteredModelsFromABox(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, withSecretFile("anthropic", secretFile(t, harness.TestSecret)))
	const host, ask = "models.example.com", `{"model":"claude-x","max_tokens":50,"stream":true,"messages":[{"role":"user","content":"hello"}]}`
	if err := w.Net.AddHost(host, "198.51.100.79", "2001:db8:1::79"); err != nil {
		t.Fatal(err)
	}
	var answered atomic.Int32
	if err := w.Net.ServeHTTP(host, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("X-Api-Key") != harness.TestSecret || string(body) != ask || r.URL.Path != "/v1/messages" {
			t.Errorf("the server received %s %s %v %s", r.Method, r.URL, r.Header, body)
		}
		answered.Add(1)
		rw.Header().Set("Content-Type", "text/event-stream")
		for _, e := range []string{
			`{"type":"message_start","message":{"model":"claude-x-1","usage":{"input_tokens":11,"output_tokens":1}}}`,
			`{"type":"content_block_delta","delta":{"text":"hello from the model"}}`,
			`{"type":"message_delta","usage":{"output_tokens":21}}`, `{"type":"message_stop"}`,
		} {
			_, _ = io.WriteString(rw, "data: "+e+"\n\n")
			rw.(http.Flusher).Flush()
		}
	})); err != nil {
		t.Fatal(err)
	}
	box := w.Create(map[string]any{
		"network_policy": harness.Custom(host),
		"attach_headers": map[string]any{host: map[string]any{
			"headers": map[string]any{"X-Api-Key": map[string]string{"secret": "anthropic"}},
			"meter":   "anthropic", "models": map[string]any{"allow": []string{"claude-*"}, "deny": []string{"claude-opus-*"}},
		}},
	})
	const post = "curl -k -sS -w '%{http_code}' -H 'Content-Type: application/json' "
	for _, way := range everyWay {
		harness.Contains(t, w.MustSh(box, post+way+" --data '"+ask+"' https://"+host+"/v1/messages"), "hello from the model", "message_stop", "200")
		for data, path := range map[string]string{
			strings.Replace(ask, "claude-x", "claude-opus-4", 1): "/v1/messages", `{"requests":[]}`: "/v1/messages/batches",
		} {
			harness.Contains(t, w.MustSh(box, post+way+" --data '"+data+"' https://"+host+path), `{"error":{"message":"boxgate: `, `"type":"permission_error"},"type":"error"}`, "403")
		}
		harness.Contains(t, w.MustSh(box, post+way+` --data '{"model":"claude-opus-4","Model":"claude-x"}' https://`+host+"/v1/messages"), `"type":"invalid_request_error"`, "400")
	}
	if n := answered.Load(); int(n) != len(everyWay) {
		t.Errorf("the server answered %d requests", n)
	}
	allowed := w.Event(box, func(e audit.Event) bool { return e.Verdict == policy.Allow && e.Path == "/v1/messages" })
	if allowed.Messages != "model claude-x" || allowed.Status != 200 {
		t.Errorf("decision %+v", allowed)
	}
	denied := w.Event(box, func(e audit.Event) bool { return e.Reason == name.ReasonModelDenied && e.Path == "/v1/messages" })
	if denied.Messages != "model claude-opus-4" || denied.Rule != host || denied.Status != 403 {
		t.Errorf("decision %+v", denied)
	}
	w.Event(box, func(e audit.Event) bool { return e.Reason == name.ReasonUnreadableContent })
	out, status := w.GatewayCommand("headers", "list", "--box", box)
	if status != 0 {
		t.Errorf("exit %d", status)
	}
	harness.Contains(t, out, "(metered: anthropic)", "models: claude-* -claude-opus-*")
}

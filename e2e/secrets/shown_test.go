package secrets

import (
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestAttackPlaceholderInWhatServersShow: a box puts a placeholder where the rule's host echoes it, or stores it in an
// object that others read. The request is refused, and neither the placeholder nor the secret arrives.
func TestAttackPlaceholderInWhatServersShow(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, withSecretFile("openai", secretFile(t, "from-"+harness.TestSecret)))
	box := placeholderBox(w)
	token := strings.TrimSpace(w.MustSh(box, "printenv API_KEY"))
	const socket = `--http1.1 -H "Connection: Upgrade" -H "Upgrade: websocket" -H "Sec-WebSocket-Version: 13" -H "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==" `
	var lines []string
	for _, header := range []string{
		"X-Goog-Meta-Owner", "x-amz-meta-owner", "X_Amz_Meta_Owner", "X-Ms-Meta-Owner", "X-Object-Meta-Owner", "X-Container-Meta-Owner",
		"X-Amz-Tagging", "X-Amz-Website-Redirect-Location", "Content-Disposition", "Upload-Metadata", "Sec-WebSocket-Protocol", "Anthropic-Version",
	} {
		for _, way := range append([]string{socket}, everyWay...) {
			lines = append(lines, `curl -sS --max-time 60 -w ' %{http_code}' `+way+` -H "`+header+`: x, $API_KEY" https://api.example.com/ws`)
		}
	}
	for _, ran := range w.ShEach(box, lines...) {
		if ran.Code != 0 || !strings.HasSuffix(ran.Out, " 403") || !strings.Contains(ran.Out, `"placeholder_leak"`) {
			t.Errorf("%s: exit %d: %s", ran.Line, ran.Code, ran.Out)
		}
	}
	f := w.Intrude(box).Frames("api.example.com")
	f.Send(1, false, harness.Head("api.example.com", harness.Field{":method", "CONNECT"}, harness.Field{":protocol", "websocket"}, harness.Field{":path", "/ws"},
		harness.Field{"sec-websocket-version", "13"}, harness.Field{"sec-websocket-protocol", "key." + token})...)
	if got := f.Outcome(1); got != "403" {
		t.Errorf("a WebSocket over HTTP/2: %s", got)
	}
	if got := w.Net.Received("api.example.com", testnet.Of(testnet.Request)); len(got) != 0 {
		t.Errorf("arrived: %+v", got)
	}
	e := w.DenialOf(box, policy.StageHTTP, "api.example.com", name.ReasonPlaceholderLeak)
	if !strings.Contains(e.Error, "API_KEY") {
		t.Errorf("decision %+v", e)
	}
}

// TestRulesForWhatServersShowAreWarnedOf: the API warns about a rule that sets a secret in such a place.
func TestRulesForWhatServersShowAreWarnedOf(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	var answer struct {
		Warnings []struct{ Pointer, Message string }
	}
	rules := map[string]any{"api.example.com": map[string]string{"Authorization": harness.Canary, "X-Goog-Meta-Owner": harness.Canary}}
	if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(box, "config/attach-headers"), map[string]any{"attach_headers": rules}, &answer); err != nil {
		t.Fatal(err)
	}
	if len(answer.Warnings) != 1 || answer.Warnings[0].Pointer != "/attach_headers/api.example.com/headers/X-Goog-Meta-Owner" ||
		strings.Contains(answer.Warnings[0].Message, harness.Canary) {
		t.Errorf("warnings: %+v", answer.Warnings)
	}
}

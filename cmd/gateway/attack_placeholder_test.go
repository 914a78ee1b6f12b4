package main

import (
	"strings"
	"testing"

	"boxgate/internal/testnet"
	"boxgate/policy"
)

// TestAttackPlaceholderInWhatServersShow: a box puts a token where the host of its rule sends it back, or stores it for
// whoever reads the object. It is refused, and neither the token nor the secret arrives.
func TestAttackPlaceholderInWhatServersShow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withSecretFile("openai", secretFile(t, "from-"+testSecret)))
	box := w.placeholderBox()
	token := strings.TrimSpace(w.mustSh(box, "printenv API_KEY"))
	const socket = `--http1.1 -H "Connection: Upgrade" -H "Upgrade: websocket" -H "Sec-WebSocket-Version: 13" -H "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==" `
	for _, header := range []string{
		"X-Goog-Meta-Owner", "x-amz-meta-owner", "X_Amz_Meta_Owner", "X-Ms-Meta-Owner", "X-Object-Meta-Owner", "X-Container-Meta-Owner",
		"X-Amz-Tagging", "X-Amz-Website-Redirect-Location", "Content-Disposition", "Upload-Metadata", "Sec-WebSocket-Protocol", "Anthropic-Version",
	} {
		for _, way := range append([]string{socket}, everyWay...) {
			out, code := w.sh(box, `curl -sS --max-time 5 -w ' %{http_code}' `+way+` -H "`+header+`: x, $API_KEY" https://api.example.com/ws`)
			if code != 0 || !strings.HasSuffix(out, " 403") || !strings.Contains(out, `"placeholder_leak"`) {
				t.Errorf("curl %s, %s: exit %d: %s", way, header, code, out)
			}
		}
	}
	f := w.intrude(box).frames("api.example.com")
	f.send(1, false, head("api.example.com", field{":method", "CONNECT"}, field{":protocol", "websocket"}, field{":path", "/ws"},
		field{"sec-websocket-version", "13"}, field{"sec-websocket-protocol", "key." + token})...)
	if got := f.outcome(1); got != "403" {
		t.Errorf("a WebSocket over HTTP/2: %s", got)
	}
	if got := w.Net.Received("api.example.com", testnet.Of(testnet.Request)); len(got) != 0 {
		t.Errorf("arrived: %+v", got)
	}
	e := w.denialOf(box, policy.StageHTTP, "api.example.com", policy.ReasonPlaceholderLeak)
	if !strings.Contains(e.Error, "API_KEY") {
		t.Errorf("decision %+v", e)
	}
}

// TestRulesForWhatServersShowAreWarnedOf: whoever has the gateway set a secret there is told by the API.
func TestRulesForWhatServersShowAreWarnedOf(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	box := w.create(map[string]any{"network_policy": custom("api.example.com")})
	var answer struct {
		Warnings []struct{ Pointer, Message string }
	}
	rules := map[string]any{"api.example.com": map[string]string{"Authorization": canary, "X-Goog-Meta-Owner": canary}}
	if err := w.Client.Do(t.Context(), "PUT", boxPath(box, "config/attach-headers"), map[string]any{"attach_headers": rules}, &answer); err != nil {
		t.Fatal(err)
	}
	if len(answer.Warnings) != 1 || answer.Warnings[0].Pointer != "/attach_headers/api.example.com/headers/X-Goog-Meta-Owner" ||
		strings.Contains(answer.Warnings[0].Message, canary) {
		t.Errorf("warnings: %+v", answer.Warnings)
	}
}

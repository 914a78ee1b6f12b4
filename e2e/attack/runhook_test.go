package attack

import (
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

// The webhook of a run is traffic of the box, like that of a schedule: it reaches neither the gateway's own servers nor
// hosts that the policy denies.
func TestAttackWebhookOfARun(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com"), "agent": "custom",
		"custom_runner": map[string]any{"command": "sh", "args": []string{"-c", `printf 'event: done\ndata: {"output":"ok"}\n\n'`}, "protocol": "box-sse-v1"},
	})
	run := func(hook string) {
		body := map[string]any{"prompt": "go", "webhook": map[string]any{"url": hook, "headers": map[string]string{"X-Hook": "1"}}}
		if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "run"), body, nil); err != nil {
			t.Fatalf("%s: %v", hook, err)
		}
	}
	for hook, reason := range map[string]name.Reason{
		"http://127.0.0.1:8600/v2/box": name.ReasonProtectedRange, "http://169.254.169.254/": name.ReasonProtectedRange, "https://evil.example.net/": name.ReasonNotAllowed,
	} {
		run(hook)
		w.Event(box, func(e audit.Event) bool {
			return e.Verdict == policy.Deny && e.Reason == reason && (e.Name != "" && strings.Contains(hook, e.Name) || e.Addr.IsValid() && strings.Contains(hook, e.Addr.String()))
		})
	}
	run("https://api.example.com/hook")
	w.Until("the allowed webhook has come", func() bool { return len(w.Net.Received("api.example.com", testnet.Path("/hook"))) > 0 })
	w.NothingReached("evil.example.net")
}

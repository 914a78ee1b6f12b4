package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// TestBoxNetwork: a policy of another product is converted and set with its header rules, shown without values, compared without a
// change, and replaced by flags and by documents.
func TestBoxNetwork(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	w.Create(map[string]any{"name": "demo"})
	vercel := `{"allow": {"api.example.com": [{"transform": [{"headers": {"X-Key": "canary"}}]}], "www.example.com": []}}`
	converted := w.Run(0, nil, vercel, "policy", "convert", "--from", "vercel", "--to", "boxgate")
	set := w.Run(0, nil, converted, "box", "network", "set", "demo", "-")
	shown := w.Run(0, nil, "", "box", "network", "get", "demo")
	for _, out := range []string{set, shown} {
		harness.Contains(t, out, `"allowed_domains": [`, `"www.example.com"`, `"X-Key"`, `"headers_version": 2`)
		if strings.Contains(out, "canary") {
			t.Error("the value of a header rule is shown")
		}
	}
	harness.Contains(t, w.Run(0, nil, "", "box", "network", "set", "demo", "--dry-run", "--policy", "deny-all", "--headers", "{}"), "www.example.com")
	if again := w.Run(0, nil, "", "box", "network", "get", "demo"); again != shown {
		t.Errorf("a dry run has changed the box: %s", again)
	}
	if got := w.Run(0, nil, `{"networkBlockAll": true}`, "policy", "convert", "--from", "daytona", "--to", "boxgate"); strings.Contains(got, "attach_headers") {
		t.Errorf("header rules without any: %s", got)
	} else {
		harness.Contains(t, w.Run(0, nil, got, "box", "network", "set", "demo", "-"), `"deny-all"`, `"rules": {}`)
	}
	file := filepath.Join(t.TempDir(), "network.yaml")
	if err := os.WriteFile(file, []byte("network_policy: {mode: custom, allowed_domains: [a.example]}\nattach_headers: {a.example: {X-Other: value}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	harness.Contains(t, w.Run(0, nil, "", "box", "network", "set", "demo", "@"+file), `"X-Other"`, `"headers_version": 4`)
	harness.Contains(t, w.Run(1, nil, "", "box", "network", "set", "demo", `{"attach_headers": {}}`), "network_policy", "is missing")
	harness.Contains(t, w.Run(2, nil, "", "box", "network", "set", "demo", "--policy", "deny-all"), "--headers '{}'")
}

// TestMetadata: the metadata of a box is given, replaced, printed and removed, selects boxes, and cannot control a terminal.
func TestMetadata(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	w.Create(map[string]any{"name": "other"})
	w.Run(0, nil, "", "box", "create", "--name", "marked", "--metadata", "user=42", "--metadata", "note=a=b")
	harness.Contains(t, w.Run(0, nil, "", "box", "metadata", "marked"), "note  a=b", "user  42")
	if out := w.Run(0, nil, "", "box", "list", "--metadata", "user=42"); strings.Contains(out, "other") || !strings.Contains(out, "marked") {
		t.Errorf("selected: %s", out)
	}
	if out := w.Run(0, nil, "", "box", "metadata", "marked", "x=one\ntwo\u009b31m"); !strings.Contains(out, `x  one two\u{009b}31m`) || strings.Contains(out, "user") {
		t.Errorf("replaced: %q", out)
	}
	if out := w.Run(0, nil, "", "box", "metadata", "marked", "--clear"); strings.TrimSpace(out) != "" {
		t.Errorf("cleared: %q", out)
	}
	harness.Contains(t, w.Run(2, nil, "", "box", "metadata", "marked", "user"), "KEY=VALUE")
	harness.Contains(t, w.Run(0, nil, "", "box", "samples", "marked", "--last", "5m"), "TIME", "CACHE")
	harness.Contains(t, w.Run(1, nil, "", "box", "metadata", "marked", "user="+strings.Repeat("x", 2049)), "must be at most 2048 bytes")
}

// TestBoxTTL: the end of a box is set, put off and removed.
func TestBoxTTL(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	w.Create(map[string]any{"name": "demo"})
	harness.Contains(t, w.Run(1, nil, "", "box", "ttl", "demo", "--extend", "30m"), "no end")
	harness.Contains(t, w.Run(0, nil, "", "box", "ttl", "demo", "2h"), "the box is deleted at 2", "in 2h0m0s")
	harness.Contains(t, w.Run(0, nil, "", "box", "ttl", "demo", "--extend", "30m", "--json"), `"expires_at"`, `"ttl"`)
	harness.Contains(t, w.Run(0, nil, "", "box", "list"), "ENDS")
	harness.Contains(t, w.Run(1, nil, "", "box", "ttl", "demo", "4d"), "must be between 1 and 259200 seconds")
	harness.Contains(t, w.Run(0, nil, "", "box", "on-end", "demo", "pause", "--auto-resume"), "paused at its end, and resumed by any use")
	harness.Contains(t, w.Run(0, nil, "", "box", "ttl", "demo", "2h"), "the box is paused at 2")
	harness.Contains(t, w.Run(0, nil, "", "box", "on-end", "demo", "delete"), "deleted at its end")
	harness.Contains(t, w.Run(1, nil, "", "box", "on-end", "demo", "stop"), "must be delete or pause")
	harness.Contains(t, w.Run(0, nil, "", "box", "ttl", "demo", "never"), "the box has no end")
	harness.Contains(t, w.Run(2, nil, "", "box", "ttl", "demo", "soon"), "not a duration")
}

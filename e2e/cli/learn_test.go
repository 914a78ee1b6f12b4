package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/policy/learn"
)

// TestLearnedPolicy: under an audit of deny-all a workload runs to its end. The policy that is learned from it, set by hand, lets the
// same workload pass, and nothing else.
func TestLearnedPolicy(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	const workload = "curl -kfsS -m 30 -o /dev/null https://api.example.com/v1/items/17 && curl -fsS -m 30 -o /dev/null http://plain.example.com/a && " +
		"curl -kfsS -m 30 -o /dev/null https://cdn.example.org/lib.js"
	if out, code := w.Sh(box, workload); code == 0 {
		t.Fatalf("passes under deny-all: %s", out)
	}
	harness.Contains(t, w.Run(0, nil, "", "policy", "audit", box), "The policy is enforced.")
	harness.Contains(t, w.Run(0, nil, "", "policy", "audit", box, "--for", "1h"), "audited, not enforced, until")
	w.Run(2, nil, "", "policy", "audit", box, "--for", "25h")
	harness.Contains(t, w.Run(0, nil, "", "status"), "not enforced: ", box+" for ", "to enforce: gateway policy audit BOX --end")
	harness.Contains(t, w.Run(0, nil, "", "box", "list"), "deny-all (audited)")
	harness.Contains(t, w.Run(0, nil, "", "top", "--once"), "idle (audited)")
	w.MustSh(box, workload)
	want := []string{"api.example.com:443", "cdn.example.org:443", "plain.example.com:80"}
	var text string
	w.Until("the traffic is summed up", func() bool {
		var got struct{ learn.Proposal }
		if err := json.Unmarshal([]byte(w.Run(0, nil, "", "policy", "learn", box, "--json")), &got); err != nil {
			t.Fatal(err)
		}
		text = w.Run(0, nil, "", "policy", "learn", box)
		return slices.Equal(got.Policy.AllowedDomains, want)
	})
	harness.Contains(t, text, `- "api.example.com:443"  # 1 time, `, "would be refused: deny_all", `{"hosts":["plain.example.com:80"],"methods":["GET"],"paths":["/a"],"action":"allow"}`)
	if again := w.Run(0, nil, "", "policy", "learn", box); again != text {
		t.Errorf("%s\nand then\n%s", text, again)
	}
	file := filepath.Join(t.TempDir(), "learned.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Run(0, nil, "", "policy", "set", box, "@"+file)
	harness.Contains(t, w.Run(0, nil, "", "policy", "audit", box), "The policy is enforced.") // a new policy ends the audit
	if status := w.Run(0, nil, "", "status"); strings.Contains(status, box+" for ") {
		t.Error(status)
	}
	w.MustSh(box, workload)
	for _, line := range []string{"curl -kfsS -m 30 https://www.example.com/", "curl -fsS -m 30 http://plain.example.com/b", "curl -fsS -m 30 -X POST http://plain.example.com/a"} {
		if out, code := w.Sh(box, line); code == 0 {
			t.Errorf("%s passes: %s", line, out)
		}
	}
	if notes := w.Run(0, nil, "", "policy", "learn", box); !strings.Contains(notes, "The policy is not audited now") {
		t.Errorf("%s", notes)
	}
	w.Run(0, nil, "", "policy", "audit", box, "--for", "1h")
	harness.Contains(t, w.Run(0, nil, "", "policy", "leases", box), "audit")
	harness.Contains(t, w.Run(0, nil, "", "policy", "audit", box, "--end"), "The policy is enforced.")
}

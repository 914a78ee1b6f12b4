package lifecycle

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// An attached box whose resolver tries the names of its search list first, as in a pod, finds an allowed name, also
// after a restart of the gateway. Domains that the box adds to the list get no access.
func TestSearchListOfAnAttachedBox(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	f := harness.NewForeignBox(t, "search example.net svc.cluster.local cluster.local evil.example.net", "options ndots:5")
	policy := map[string]any{"mode": "custom", "allowed_domains": []string{"*.example.com"}}
	text, _ := json.Marshal(policy)
	out, code := w.GatewayCommand("box", "attach", "--json", "--pid", strconv.Itoa(f.PID), "--name", "pod", "--policy", string(text))
	var box struct{ ID string }
	if err := json.Unmarshal([]byte(out), &box); code != 0 || err != nil {
		t.Fatalf("gateway box attach: %d %s", code, out)
	}
	found := func(when string, want bool) {
		t.Helper()
		out, _ := f.Sh("getent ahostsv4 api.example.com")
		if got := strings.Contains(out, w.V4("api.example.com").String()); got != want {
			t.Errorf("%s: %s", when, out)
		}
		if out, code := f.Sh("curl -sS --max-time 60 https://evil.example.net/"); code != 6 && code != 35 {
			t.Errorf("%s: a host that is not allowed: %d %s", when, code, out)
		}
	}
	found("attached", true)
	w.Kill()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	found("after a restart of the gateway", true)
	policy["denied_names"] = "sink"
	w.SetPolicy(box.ID, policy)
	found("with the sink for all denied names", false)
}

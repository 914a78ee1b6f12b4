package lifecycle

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/audit/trail"
	"boxgate/e2e/harness"
	"boxgate/policy"
)

// TestEveryPolicyVersionIsInTheTrail: for every policy version that a decision names, the audit trail has the change
// and its API key: of a create, of a change, of temporary entries and their end, of a change of the named policy that
// the box follows, and of a box from a snapshot.
func TestEveryPolicyVersionIsInTheTrail(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	lines := strings.Split(strings.TrimSpace(w.Run(0, nil, "", "api-key", "create", "--name", "ci", "--role", "box-creator")), "\n")
	ci := api.NewClient(w.Socket, lines[len(lines)-1])
	do := func(as *api.Client, method, path string, body, answer any) {
		t.Helper()
		if err := as.Do(t.Context(), method, path, body, answer); err != nil {
			t.Fatal(method, path, err)
		}
	}
	var made struct{ ID string }
	do(ci, http.MethodPost, "/v2/box", map[string]any{"network_policy": harness.Custom("first.example.com")}, &made)
	policyPath := api.BoxPath(made.ID, "config/network-policy")
	do(ci, http.MethodPut, policyPath, harness.Custom("api.example.com"), nil)
	do(ci, http.MethodPost, policyPath+"/leases", map[string]any{"action": "allow", "entries": []string{"www.example.com"}, "expires_in": 1}, nil)
	w.UntilEvery(100*time.Millisecond, "the temporary entry has ended", func() bool {
		var now struct{ Version uint64 }
		return w.Client.Get(t.Context(), policyPath, &now) == nil && now.Version == 4
	})
	putConfig(w, namedWeb, harness.Custom("api.example.com"))
	do(ci, http.MethodPut, policyPath, web, nil)
	putConfig(w, namedWeb, harness.Custom("api.example.com", "www.example.com"))
	w.MustSh(made.ID, "curl -k -sS -o /dev/null https://www.example.com/")
	seen := w.Event(made.ID, func(e audit.Event) bool {
		return e.Verdict == policy.Allow && e.Name == "www.example.com" && e.Stage != policy.StageDNS
	})
	if seen.Version != 6 {
		t.Errorf("the decision names version %d", seen.Version)
	}
	versions := []struct{ key, has string }{
		{"ci", `"mode":["","custom"],"allowed_domains":{"added":["first.example.com"]}`},
		{"ci", `"allowed_domains":{"added":["api.example.com"],"removed":["first.example.com"]}`},
		{"ci", `"leases":{"added":["allow www.example.com until`},
		{"ci", `"leases":{"removed":["allow www.example.com until`},
		{"ci", `"named":["","web"]`},
		{"operator", `"allowed_domains":{"added":["www.example.com"]}`},
	}
	for i, v := range versions {
		leadsTo(w, made.ID, uint64(i+1), v.key, v.has)
	}
	expectHistory(w, made.ID, []string{
		`create ci first.example.com`, `set ci api.example.com`, `lease_begun ci api.example.com with www.example.com`, `lease_expired ci api.example.com`, `set ci api.example.com following web`,
		`named_policy operator api.example.com,www.example.com following web`,
	})
	snapshot := takeSnapshot(w, made.ID, "s").ID
	var again struct{ ID string }
	do(ci, http.MethodPost, "/v2/box/from-snapshot", map[string]any{"snapshot_id": snapshot}, &again)
	leadsTo(w, again.ID, 1, "ci", `"allowed_domains":{"added":["api.example.com","www.example.com"]},"named":["","web"]`)
}

// expectHistory expects the versions of a box's policy, the oldest first, each with its cause, its key and its text.
func expectHistory(w *harness.World, box string, want []string) {
	w.T.Helper()
	for n, text := range want {
		var doc api.PolicyDocument
		out := w.Run(0, nil, "", "policy", "show", fmt.Sprintf("%s@%d", box, n+1), "--json")
		if err := json.Unmarshal([]byte(out), &doc); err != nil {
			w.T.Fatal(err)
		}
		got := doc.Cause + " " + doc.Key + " " + strings.Join(doc.Policy.AllowedDomains, ",")
		for _, e := range doc.Entries {
			got += " with " + e.Entry
		}
		if doc.Named != "" {
			got += " following " + doc.Named
		}
		if got != text || doc.Result != "in_force" || doc.Cause != "lease_expired" && !strings.HasPrefix(doc.Remote, "unix") {
			w.T.Errorf("version %d: %q, want %q: %s", n+1, got, text, out)
		}
	}
	if out := w.Run(0, nil, "", "policy", "history", box); strings.Count(out, "\n") != len(want)+1 {
		w.T.Errorf("%s", out)
	}
}

// leadsTo expects one entry of the audit trail that explains a version of a box's policy.
func leadsTo(w *harness.World, box string, version uint64, key, has string) {
	w.T.Helper()
	out := strings.TrimSpace(w.Run(0, nil, "", "audit", "--box", box, "--policy-version", strconv.FormatUint(version, 10), "--json"))
	var e trail.Entry
	if err := json.Unmarshal([]byte(out), &e); err != nil || e.Key != key || e.PolicyVersion != version || !strings.Contains(string(e.Change.RawMessage), has) {
		w.T.Errorf("version %d leads to %q (%v), and not to %s, by %s", version, out, err, has, key)
	}
}

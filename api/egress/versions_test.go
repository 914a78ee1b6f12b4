package egress_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/policy"
)

// TestPolicyHistory: a key reads the history of the boxes that it sees, page by page, by version and by time. Only keys that
// see all boxes read the history of a deleted one.
func TestPolicyHistory(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	begin := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	history := func(box policy.BoxID) (docs []api.PolicyDocument) {
		for n := range 5 {
			at := begin.Add(time.Duration(n) * time.Hour)
			docs = append(docs, api.PolicyDocument{Box: box, Policy: policy.Spec{Mode: policy.ModeDenyAll}, PolicyVersion: api.PolicyVersion{Version: uint64(n + 1), MadeAt: at, Since: at, Cause: "set", Key: "deploy"}})
		}
		return docs
	}
	f.host.Versions = map[policy.BoxID][]api.PolicyDocument{id: history(id), "deleted1": history("deleted1")}
	for path, want := range map[string]string{
		"":                         "5 4 3 2 1",
		"?limit=2":                 "5 4 more",
		"?limit=2&before=4":        "3 2 more",
		"?before=2":                "1",
		"?at=2026-06-01T02:30:00Z": "3",
		"?at=2026-05-01T00:00:00Z": "",
	} {
		got := f.Call(t, "GET", "/v2/box/box1/egress/policy-history"+path, "")
		var list []string
		if got.StatusCode != 200 {
			t.Errorf("%s: %s", path, got.Text)
			continue
		}
		for _, v := range got.JSON(t)["versions"].([]any) {
			list = append(list, fmt.Sprint(v.(map[string]any)["version"]))
		}
		if got.JSON(t)["more"] == true {
			list = append(list, "more")
		}
		if strings.Join(list, " ") != want {
			t.Errorf("%s: %q, want %q", path, list, want)
		}
	}
	for path, want := range map[string]int{
		"/v2/box/box1/egress/policy-history/3":               200,
		"/v2/box/web/egress/policy-history/3":                200,
		"/v2/box/box1/egress/policy-history/9":               404,
		"/v2/box/box1/egress/policy-history/0":               404,
		"/v2/box/box1/egress/policy-history/x":               404,
		"/v2/box/box1/egress/policy-history?limit=501":       422,
		"/v2/box/box1/egress/policy-history?at=yesterday":    422,
		"/v2/box/deleted1/egress/policy-history":             200,
		"/v2/box/deleted1/egress/policy-history/5":           200,
		"/v2/box/deleted2/egress/policy-history":             404,
		"/v2/box/..%2f..%2fsettings/egress/policy-history/1": 404,
	} {
		if got := f.Call(t, "GET", path, ""); got.StatusCode != want {
			t.Errorf("%s: %s, want %d: %s", path, got.Status, want, got.Text)
		}
	}
	for role, want := range map[api.Role][2]int{api.RoleReader: {200, 200}, api.RoleBox: {200, 404}, api.RoleCreator: {404, 404}} {
		key, _, err := f.host.CreateAPIKey(t.Context(), api.KeyRequest{Name: string(role), Role: role, Box: map[api.Role]policy.BoxID{api.RoleBox: id}[role]})
		if err != nil {
			t.Fatal(err)
		}
		for n, box := range []policy.BoxID{id, "deleted1"} {
			for _, path := range []string{"", "/1"} {
				got := f.Call(t, "GET", "/v2/box/"+string(box)+"/egress/policy-history"+path, "", func(r *http.Request) { r.Header.Set(api.KeyHeader, key.Reveal()) })
				if got.StatusCode != want[n] {
					t.Errorf("%s for %s%s: %s, want %d", role, box, path, got.Status, want[n])
				}
			}
		}
	}
}

// TestAttackSettingsInThePolicyHistory: keys for some boxes do not read the operator's header rules and ceiling in the history, nor from
// where others changed the policy.
func TestAttackSettingsInThePolicyHistory(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	made := api.PolicyVersion{Version: 1, Cause: "set", KeyID: "key_admin", Key: "operator", Remote: "unix uid 0 (root), login of uid 1000 (canary)"}
	secret := []api.PastRules{{Rules: []api.PastRule{{Host: "canary.example", Secrets: []string{"canary-secret"}}}}}
	f.host.Versions = map[policy.BoxID][]api.PolicyDocument{id: {{
		Box: id, PolicyVersion: made, GlobalRules: secret, Ceilings: []api.PastCeiling{{Policy: &policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"canary.internal"}}}},
		HeaderRules: []api.PastRules{{KeyID: "key_admin", Remote: "192.0.2.1 canary"}},
	}}}
	for role, hidden := range map[api.Role]bool{api.RoleBox: true, api.RoleReader: false, api.RoleAuditor: false} {
		key, _, err := f.host.CreateAPIKey(t.Context(), api.KeyRequest{Name: string(role), Role: role, Box: map[api.Role]policy.BoxID{api.RoleBox: id}[role]})
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"", "/1"} {
			got := f.Call(t, "GET", "/v2/box/"+string(id)+"/egress/policy-history"+path, "", func(r *http.Request) { r.Header.Set(api.KeyHeader, key.Reveal()) })
			if got.StatusCode != 200 || strings.Contains(got.Text, "canary") == hidden {
				t.Errorf("%s%s: %s %s", role, path, got.Status, got.Text)
			}
		}
	}
}

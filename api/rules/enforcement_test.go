package rules_test

import (
	"fmt"
	"strings"
	"testing"

	"boxgate/api"
)

// TestEnforcement: an audit has an end within a day, is shown with the policy and its leases, and survives a policy that lists it.
func TestEnforcement(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{})
	at := "/v2/box/" + id + "/config/network-policy"
	f.Expect(t, 200, "GET", at+"/enforcement", "", `{"enforcement":"enforce","version":1}`)
	f.Expect(t, 200, "PUT", at+"/enforcement", `{"enforcement":"audit","expires_in":86400}`,
		`"enforcement":"audit"`, `"started_at":1700000000`, `"expires_at":1700086400`, `"expires_in":86400`, `"version":2`)
	f.Expect(t, 200, "GET", at+"/leases", "", `{"action":"audit","entry":"","started_at":1700000000`)
	f.Expect(t, 200, "PUT", at, `{"mode":"deny-all","leases":[{"action":"audit","entry":""}]}`, `"action":"audit"`)
	f.Expect(t, 200, "GET", at+"/enforcement", "", `"enforcement":"audit"`)
	f.Expect(t, 200, "PUT", at, `{"mode":"deny-all"}`)
	f.Expect(t, 200, "GET", at+"/enforcement", "", `"enforcement":"enforce"`)
	f.Expect(t, 200, "PUT", at+"/enforcement", `{"enforcement":"audit","expires_in":1}`)
	f.Expect(t, 200, "PUT", at+"/enforcement", `{"enforcement":"enforce"}`, `{"enforcement":"enforce","version":6}`)
	for body, want := range map[string]string{
		`{"enforcement":"audit"}`:                          "is missing",
		`{"enforcement":"audit","expires_in":0}`:           "must be between 1 and 86400",
		`{"enforcement":"audit","expires_in":86401}`:       "must be between 1 and 86400",
		`{"enforcement":"enforce","expires_in":1}`:         "leave it out",
		`{"enforcement":"off"}`:                            "must be enforce or audit",
		`{"enforcement":"audit","expires_in":1,"until":1}`: "unknown",
	} {
		f.Expect(t, 422, "PUT", at+"/enforcement", body, want)
	}
	logs := fmt.Sprint(f.history.Logs("box1", 0, 100))
	for _, want := range []string{"network policy audited instead of enforced for 24h0m0s, version 2", "network policy enforced, version 6"} {
		if !strings.Contains(logs, want) {
			t.Errorf("the log of the box is %s, without %q", logs, want)
		}
	}
}

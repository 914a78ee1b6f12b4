package rules

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/policy"
)

// TestChangesOfPolicies: the audit trail has what was added and removed of each part, and nothing of the parts that stayed.
func TestChangesOfPolicies(t *testing.T) {
	t.Parallel()
	ends := time.Date(2030, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	was := api.PolicyState{Version: 1, Named: "web", Spec: policy.Spec{
		Mode: policy.ModeCustom, AllowedDomains: []string{"a.example", "b.example"}, DeniedCIDRs: []string{"192.0.2.0/24"},
	}}
	is := api.PolicyState{Version: 2, Spec: policy.Spec{
		Mode: policy.ModeCustom, DNS: policy.DNSResolve, AllowedDomains: []string{"b.example", "c.example"}, DeniedCIDRs: []string{"192.0.2.0/24"},
		UpstreamProxy: &policy.UpstreamSpec{URL: "https://proxy.example:3128", ResolveThere: []string{"*.corp.example"}},
	}, Leases: []api.Lease{{LeaseEntry: api.LeaseEntry{Entry: "d.example"}, ExpiresAt: ends}}}
	got, err := json.Marshal(policyChanged("box1", was, is).What)
	want := `{"policy":{"version":2,"dns":["","resolve"],"allowed_domains":{"added":["c.example"],"removed":["a.example"]},"named":["web",""],"rules":[0,0],"repos":[0,0],` +
		`"upstream_proxy":["","https://proxy.example:3128"],"resolve_there":{"added":["*.corp.example"]},"leases":{"added":["deny d.example until 2030-01-02T02:04:05Z"]}}}`
	if err != nil || string(got) != want {
		t.Errorf("%v\n got %s\nwant %s", err, got, want)
	}
}

// TestChangesAreBounded: of a list that changes much, the first entries are named and the others counted.
func TestChangesAreBounded(t *testing.T) {
	t.Parallel()
	var list []string
	for i := range listMost + 7 {
		list = append(list, fmt.Sprintf("h%d.example", i))
	}
	if c := changeOf(nil, list); len(c.Added) != listMost || len(c.Removed) != 0 || c.More != 7 {
		t.Errorf("%d added, %d removed, %d more", len(c.Added), len(c.Removed), c.More)
	}
	if c := changeOf(list, list[:1]); len(c.Added) != 0 || len(c.Removed) != listMost || c.More != 6 {
		t.Errorf("%d added, %d removed, %d more", len(c.Added), len(c.Removed), c.More)
	}
	if c := changeOf([]string{"a", "b"}, []string{"b", "a"}); c != nil {
		t.Errorf("another order is a change: %+v", c)
	}
	var rules []policy.HeaderRule
	for _, host := range list {
		pattern, err := policy.ParsePattern(host)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, policy.HeaderRule{Pattern: pattern}, policy.HeaderRule{Pattern: pattern})
	}
	what, _ := headersChanged("box1", rules, 3).What.(map[string]any)
	shown, _ := what["headers"].(map[string]any)
	if hosts, _ := shown["hosts"].([]string); len(hosts) != listMost || shown["count"] != len(list) || hosts[0] != "h0.example" || hosts[1] != "h1.example" {
		t.Errorf("%v", shown)
	}
}

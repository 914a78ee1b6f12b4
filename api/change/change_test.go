package change

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/policytest"
	"boxgate/rule"
)

// written encodes a change.
func written(t *testing.T, v any) string {
	t.Helper()
	got, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

// TestChangesOfPolicies: the audit trail contains added, removed and changed entries of each part, and omits unchanged
// parts.
func TestChangesOfPolicies(t *testing.T) {
	t.Parallel()
	ends := time.Date(2030, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	was := api.PolicyState{Version: 1, Named: "web", Spec: policy.Spec{
		Mode: policy.ModeCustom, AllowedDomains: []string{"a.example", "b.example"}, DeniedCIDRs: []string{"192.0.2.0/24"},
		Rules: []match.RequestRule{{Hosts: []string{"r.example", "s.example"}, Action: "deny"}, {Hosts: []string{"t.example"}, Action: "deny"}},
		Repos: []match.RepoRule{{Name: "o/gone", Access: "push"}, {Name: "o/stays", Access: "read"}},
	}}
	is := api.PolicyState{Version: 2, Was: &was, Spec: policy.Spec{
		Mode: policy.ModeCustom, DNS: policy.DNSResolve, AllowedDomains: []string{"b.example", "c.example"}, DeniedCIDRs: []string{"192.0.2.0/24"},
		Rules:         []match.RequestRule{{Hosts: []string{"s.example"}, Action: "allow", Paths: []string{"/sk-path"}}, {Hosts: []string{"t.example"}, Action: "deny"}},
		Repos:         []match.RepoRule{{Name: "o/stays", Access: "read"}},
		UpstreamProxy: &policy.UpstreamSpec{URL: "https://proxy.example:3128", ResolveThere: []string{"*.corp.example"}},
	}, Leases: []api.Lease{{LeaseEntry: api.LeaseEntry{Entry: "d.example"}, ExpiresAt: ends}}}
	c := OfPolicy("box1", is)
	want := `{"policy":{"version":2,"dns":["","resolve"],"allowed_domains":{"added":["c.example"],"removed":["a.example"]},"named":["web",""],"rules":[2,2],` +
		`"rule_hosts":{"removed":["r.example"],"changed":["s.example"]},"repos":{"removed":["o/gone push"]},` +
		`"upstream_proxy":["","https://proxy.example:3128"],"resolve_there":{"added":["*.corp.example"]},"leases":{"added":["deny d.example until 2030-01-02T02:04:05Z"]}}}`
	if got := written(t, c.What); got != want || c.Box != "box1" || c.PolicyVersion != 2 {
		t.Errorf("box %s, version %d\n got %s\nwant %s", c.Box, c.PolicyVersion, got, want)
	}
}

// TestChangesOfNamedPolicies: each follower has an entry of its own with the new version of its policy.
func TestChangesOfNamedPolicies(t *testing.T) {
	t.Parallel()
	was, is := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"a.example"}}, policy.Spec{Mode: policy.ModeDenyAll}
	c := OfNamed(api.NamedPolicy{Name: "web", Spec: is, Version: 4, Was: was, Boxes: make([]api.Box, 1), Followers: []api.Follower{
		{Box: "box1", Was: api.PolicyState{Spec: was, Version: 7}, Is: api.PolicyState{Spec: is, Version: 8}},
	}})
	text := `"policy":{"version":%d,"mode":["custom","deny-all"],"allowed_domains":{"removed":["a.example"]}}`
	if got, want := written(t, c.What), `{"named_policy":{"boxes":1,"name":"web",`+fmt.Sprintf(text, 4)+`}}`; got != want || c.PolicyVersion != 0 {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if len(c.Also) != 1 {
		t.Fatalf("%+v", c.Also)
	}
	if got, want := written(t, c.Also[0].What), `{"named_policy":{"name":"web","version":4},`+fmt.Sprintf(text, 8)+`}`; got != want || c.Also[0].Box != "box1" || c.Also[0].PolicyVersion != 8 {
		t.Errorf("%+v\n got %s\nwant %s", c.Also[0], got, want)
	}
	gone := OfNamedDeleted(api.NamedPolicy{Name: "web", Spec: was, Version: 3})
	if got := written(t, gone.What); !strings.Contains(got, `"removed":["a.example"]`) || !strings.Contains(got, `"deleted":true`) {
		t.Errorf("deleted: %s", got)
	}
}

// headerRules parses header rules.
func headerRules(t *testing.T, text string) []policy.HeaderRule {
	t.Helper()
	rules, err := policy.ParseHeaderRules([]byte(text), rule.Configured(func(string) bool { return true }))
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// TestChangesOfHeaders: a change lists hosts with added, removed and changed rules, and the secrets they use, but no
// values.
func TestChangesOfHeaders(t *testing.T) {
	t.Parallel()
	was := headerRules(t, `{"a.example":{"X-Key":"sk-1"},"b.example":{"X-Key":"sk-1"},"c.example":{"headers":{"X-Key":{"secret":"old"}}},"d.example":{"X-Key":"sk-1"}}`)
	is := headerRules(t, `{"b.example":{"X-Key":"sk-2"},"c.example":{"headers":{"X-Key":{"secret":"new"}}},"d.example":{"X-Key":"sk-1"},"e.example":{"X-Key":"sk-1"}}`)
	want := `{"headers":{"version":3,"hosts":["b.example","c.example","d.example","e.example"],"count":4,` +
		`"changes":{"added":["e.example"],"removed":["a.example"],"changed":["b.example","c.example"]},` +
		`"secrets":{"added":["c.example: new"],"removed":["c.example: old"]}}}`
	if got := written(t, OfHeaders("box1", api.HeaderState{Rules: is, Was: was, Version: 3}).What); got != want {
		t.Errorf(" got %s\nwant %s", got, want)
	}
}

// TestChangesAreBounded: entries that do not fit are counted, and the parts of a change share the limit.
func TestChangesAreBounded(t *testing.T) {
	t.Parallel()
	var list []string
	size := 0
	for i := range 10_000 {
		list = append(list, fmt.Sprintf("h%05d.example", i))
		size += len(list[i])
	}
	if c := Names(nil, list[:100]); len(c.Added) != 100 || c.More != 0 {
		t.Errorf("%d added, %d more", len(c.Added), c.More)
	}
	fits := Whole / len(list[0])
	if c := Names(nil, list); len(c.Added) != fits || c.Added[0] != list[0] || c.More != len(list)-fits {
		t.Errorf("%d added, %d more", len(c.Added), c.More)
	}
	if c := Names(list, list[:1]); len(c.Removed) != fits || len(c.Added) != 0 || c.More != len(list)-1-fits {
		t.Errorf("%d removed, %d more", len(c.Removed), c.More)
	}
	if c := Names([]string{"a", "b"}, []string{"b", "a"}); c != nil {
		t.Errorf("another order is a change: %+v", c)
	}
	full := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: list, DeniedDomains: list, AllowedCIDRs: list}
	if got := written(t, Policy(api.PolicyState{}, api.PolicyState{Spec: full}, Brief)); len(got) > 2*Brief || !strings.Contains(got, `"allowed_cidrs":{"more":10000}`) {
		t.Errorf("%d bytes: %s", len(got), got[:min(len(got), 500)])
	}
}

// TestEachFieldOfAPolicyIsInTheTrail: a change of any field of a policy is described.
func TestEachFieldOfAPolicyIsInTheTrail(t *testing.T) {
	t.Parallel()
	for path, pair := range policytest.Variants() {
		if strings.HasPrefix(path, ".Rules[]") && path != ".Rules[].Hosts[]" { // rules are described by their hosts
			for i := range pair {
				pair[i].Rules[0].Hosts = []string{"a.example"}
			}
		}
		none, one, two := api.PolicyState{}, api.PolicyState{Spec: pair[0]}, api.PolicyState{Spec: pair[1]}
		differ := reflect.DeepEqual(pair[0], pair[1]) || !reflect.DeepEqual(Policy(one, two, Whole), PolicyChange{})
		if reflect.DeepEqual(Policy(none, one, Whole), PolicyChange{}) || !differ {
			t.Errorf("%s is not described: %+v", path, Policy(one, two, Whole))
		}
	}
}

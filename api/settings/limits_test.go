package settings_test

import (
	"slices"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/llm"
	"boxgate/policy"
)

// TestLimitsOfABox reads and changes limits with an admin key.
func TestLimitsOfABox(t *testing.T) {
	t.Parallel()
	f := serve(t)
	path := api.BoxPath(f.host.Add(t, api.CreateRequest{Name: "web"}), "config", "limits")
	f.Expect(t, 200, "GET", path, "", `"connections":100`, `"send_bytes_per_second":0`, `"operator":{}`, `"own":{}`)
	f.Expect(t, 200, "PATCH", path, `{"limits":{"connections":5000,"send_bytes_per_second":65536}}`,
		`"connections":5000`, `"send_bytes_per_second":65536`, `"operator":{"connections":5000,"send_bytes_per_second":65536}`)
	f.Expect(t, 200, "PATCH", path, `{"limits":{"connections":null,"receive_bytes_per_second":0}}`,
		`"connections":100`, `"operator":{"receive_bytes_per_second":0,"send_bytes_per_second":65536}`)
	for body, words := range map[string]string{
		`{}`: "/limits", `{"limits":{}}`: "is required", `{"limits":null}`: "/limits", `{"limits":7}`: "/limits", `{"limits":{"connections":0}}`: "/limits/connections",
		`{"limits":{"connections":1.5}}`: "whole number", `{"limits":{"connections":"7"}}`: "whole number", `{"limits":{"kernel_flows":7}}`: "/limits/kernel_flows",
		`{"limits":{"memory":1}}`: "16777216", `{"limits":{"quota":-1}}`: "0 for no limit", `{"limits":{"connections":1,"connections":2}}`: "duplicate", `{"limit":{}}`: "unknown field",
	} {
		f.Expect(t, 422, "PATCH", path, body, words)
	}
	f.Expect(t, 200, "GET", path, "", `"operator":{"receive_bytes_per_second":0,"send_bytes_per_second":65536}`)
	f.Expect(t, 404, "PATCH", api.BoxPath("none", "config", "limits"), `{"limits":{"connections":1}}`)
}

// TestKeysThatAreNoAdminsLowerLimits: a non-admin key may lower limits but not exceed the operator's.
func TestKeysThatAreNoAdminsLowerLimits(t *testing.T) {
	t.Parallel()
	weak, admin := api.Caller{Key: "key_1", Role: api.RoleCreator}, api.Caller{Key: "key_2", Role: api.RoleAdmin}
	host := (*apitest.Host)(nil).HostLimits() // 100 connections, 1 MiB/s received, no limit on sending
	var b api.BoxLimits
	set := func(caller api.Caller, limit policy.Limit, n int64) error {
		next, err := b.WithChange(caller, host, api.LimitChange{limit: n})
		if err == nil {
			b = next
		}
		return err
	}
	is := func(limit policy.Limit, want int64) {
		t.Helper()
		if got := b.Effective(host)[limit]; got != want {
			t.Errorf("%s is %d, want %d", limit, got, want)
		}
	}
	for limit, more := range map[policy.Limit]int64{policy.LimitConnections: 101, policy.LimitReceive: policy.Unlimited} {
		if err := set(weak, limit, more); err == nil {
			t.Errorf("%s was raised to %d", limit, more)
		}
	}
	if err := set(weak, policy.LimitConnections, 10); err != nil {
		t.Error(err)
	}
	is(policy.LimitConnections, 10)
	if err := set(weak, policy.LimitConnections, 100); err != nil {
		t.Errorf("a key cannot take back what it has lowered: %v", err)
	}
	if err := set(admin, policy.LimitConnections, 5); err != nil {
		t.Error(err)
	}
	is(policy.LimitConnections, 5)
	if err := set(weak, policy.LimitConnections, 6); err == nil {
		t.Error("what the operator has lowered was raised")
	}
	if err := set(weak, policy.LimitConnections, 0); err != nil {
		t.Error(err)
	}
	is(policy.LimitConnections, 5)
	if err := set(admin, policy.LimitConnections, 500); err != nil {
		t.Error(err)
	}
	if err := set(weak, policy.LimitConnections, 400); err != nil {
		t.Error(err)
	}
	is(policy.LimitConnections, 400)
	host[policy.LimitSend] = 1 << 20 // the operator lowers the limit of all boxes
	b.Own[policy.LimitSend] = 2 << 20
	is(policy.LimitSend, 1<<20)
}

// TestModelLimitOfABox sets limits of models: an admin key's replaces the configured one, another key's applies besides it.
func TestModelLimitOfABox(t *testing.T) {
	t.Parallel()
	f := serve(t)
	path := api.BoxPath(f.host.Add(t, api.CreateRequest{Name: "web"}), "config", "limits")
	f.Expect(t, 200, "GET", path, "", `"model":{"limits":[{"tokens":1000,"per":"day"}]}`)
	f.Expect(t, 200, "PATCH", path, `{"limits":{"model":{"usd":0.5,"per":"hour"}}}`, `"model":{"limits":[{"usd":0.5,"per":"hour"}],"operator":{"usd":0.5,"per":"hour"}}`)
	f.Expect(t, 200, "PATCH", path, `{"limits":{"connections":50}}`, `"operator":{"usd":0.5,"per":"hour"}`)
	f.Expect(t, 200, "PATCH", path, `{"limits":{"model":{}}}`, `"model":{"limits":[],"operator":{"per":"total"}}`)
	f.Expect(t, 200, "PATCH", path, `{"limits":{"model":null}}`, `"model":{"limits":[{"tokens":1000,"per":"day"}]}`)
	for body, words := range map[string]string{
		`{"limits":{"model":5}}`: "/limits/model", `{"limits":{"model":{"tokens":-1,"per":"day"}}}`: "/limits/model", `{"limits":{"model":{"tokens":1}}}`: "needs a period",
		`{"limits":{"model":{"tokens":1,"per":"week"}}}`: "unknown period", `{"limits":{"model":{"usd":1e9,"per":"day"}}}`: "/limits/model", `{"limits":{"model":{"euro":1}}}`: "/limits/model",
	} {
		f.Expect(t, 422, "PATCH", path, body, words)
	}
	weak, admin := api.Caller{Key: "key_1", Role: api.RoleBox}, api.Caller{Key: "key_2", Role: api.RoleAdmin}
	host, low, high := llm.Limit{Tokens: 1000, Per: llm.PerDay}, llm.Limit{Tokens: 10, Per: llm.PerDay}, llm.Limit{Tokens: 1 << 40, Per: llm.PerTotal}
	var b api.BoxLimits
	for _, step := range []struct {
		caller api.Caller
		set    llm.Limit
		want   []llm.Limit
	}{
		{weak, high, []llm.Limit{host, high}}, {weak, llm.Limit{Per: llm.PerTotal}, []llm.Limit{host}}, {weak, low, []llm.Limit{host, low}},
		{admin, high, []llm.Limit{high}}, {weak, low, []llm.Limit{high, low}}, {weak, llm.Limit{}, []llm.Limit{high}}, {admin, llm.Limit{}, []llm.Limit{host}},
	} {
		if b = b.WithModel(step.caller, &step.set); !slices.Equal(b.Models(host), step.want) {
			t.Errorf("after %v by %s: %v, want %v", step.set, step.caller.Role, b.Models(host), step.want)
		}
	}
	if again := b.WithModel(weak, nil); again != b {
		t.Errorf("no change: %+v", again)
	}
}

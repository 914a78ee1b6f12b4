package box

import (
	"testing"

	"boxgate/api"
	"boxgate/host/state"
	"boxgate/llm"
	"boxgate/policy"
)

// TestLimitsOfABoxFromASnapshot: a box from a snapshot inherits the limits that the request leaves out. Only an admin key
// creates a box with limits above the configuration, and other keys cannot raise limits lowered by the operator.
func TestLimitsOfABoxFromASnapshot(t *testing.T) {
	t.Parallel()
	host := policy.Limits{
		policy.LimitConnections: 100, policy.LimitStreams: 100, policy.LimitUpstreams: 100, policy.LimitRequests: 100,
		policy.LimitDNSQueries: 100, policy.LimitQuota: policy.Unlimited,
	}
	before := api.BoxLimits{
		Operator: policy.Limits{
			policy.LimitConnections: 500, policy.LimitStreams: 50, policy.LimitRequests: 50, policy.LimitDNSQueries: 50, policy.LimitQuota: 1 << 30,
		},
		Own: policy.Limits{policy.LimitConnections: 400, policy.LimitUpstreams: 10, policy.LimitDNSQueries: 5},
	}
	change := api.LimitChange{policy.LimitStreams: 20, policy.LimitRequests: 80, policy.LimitDNSQueries: 0}
	for role, want := range map[api.Role]policy.Limits{
		api.RoleAdmin: {
			policy.LimitConnections: 400, policy.LimitStreams: 20, policy.LimitUpstreams: 10, policy.LimitRequests: 80,
			policy.LimitDNSQueries: 100, policy.LimitQuota: 1 << 30,
		},
		api.RoleCreator: {
			policy.LimitConnections: 100, policy.LimitStreams: 20, policy.LimitUpstreams: 10, policy.LimitRequests: 50,
			policy.LimitDNSQueries: 50, policy.LimitQuota: 1 << 30,
		},
	} {
		caller := api.Caller{Key: "key_1", Role: role}
		asked, err := api.BoxLimits{}.WithChange(caller, host, change)
		if err != nil {
			t.Fatal(err)
		}
		s := &Snapshots{boxes: &state.Table{Limits: host}}
		got := s.limits(api.WithCaller(t.Context(), caller), before, &api.CreateRequest{Limits: asked, LimitChange: change})
		if got.Effective(host) != want {
			t.Errorf("%s: %v, want %v", role, got.Effective(host).Map(), want.Map())
		}
		if role == api.RoleAdmin {
			continue
		}
		for _, limit := range policy.AllLimits() { // nor by a later change
			raised, err := got.WithChange(caller, host, api.LimitChange{limit: 0})
			if err == nil && policy.Exceeds(raised.Effective(host)[limit], before.Operator.Over(host)[limit]) {
				t.Errorf("%s: the key raises %s to %d", role, limit, raised.Effective(host)[limit])
			}
		}
	}
}

// TestModelLimitOfASnapshotsBox: the operator's limit of models stays where it is surely below the configured one; a key's stays.
func TestModelLimitOfASnapshotsBox(t *testing.T) {
	t.Parallel()
	host, low, high := llm.Limit{Tokens: 2400, Per: llm.PerDay}, llm.Limit{Tokens: 100, Per: llm.PerHour}, llm.Limit{Tokens: 101, Per: llm.PerHour}
	own, asked := llm.Limit{Tokens: 5, Per: llm.PerTotal}, llm.Limit{Tokens: 7, Per: llm.PerTotal}
	for _, tt := range []struct {
		role         api.Role
		before, want llm.Limit
		change       *llm.Limit
		own          llm.Limit
	}{
		{api.RoleCreator, low, low, nil, own}, {api.RoleCreator, high, llm.Limit{}, nil, own}, {api.RoleCreator, llm.Limit{Per: llm.PerTotal}, llm.Limit{}, nil, own},
		{api.RoleCreator, low, low, &asked, asked}, {api.RoleAdmin, high, high, nil, own}, {api.RoleAdmin, low, asked, &asked, llm.Limit{}},
	} {
		caller := api.Caller{Key: "key_1", Role: tt.role}
		s := &Snapshots{boxes: &state.Table{ModelLimit: host}}
		req := &api.CreateRequest{Limits: api.BoxLimits{}.WithModel(caller, tt.change), ModelLimit: tt.change}
		got := s.limits(api.WithCaller(t.Context(), caller), api.BoxLimits{OperatorModel: tt.before, OwnModel: own}, req)
		if got.OperatorModel != tt.want || got.OwnModel != tt.own {
			t.Errorf("%s, %v before, %v asked: %v and %v", tt.role, tt.before, tt.change, got.OperatorModel, got.OwnModel)
		}
	}
}

package box

import (
	"testing"

	"boxgate/api"
	"boxgate/host/state"
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

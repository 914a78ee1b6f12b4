package host

import (
	"testing"

	"boxgate/api"
	"boxgate/policy"
)

// TestLimitsOfABoxFromASnapshot shows that a box from a snapshot has the limits of the box of before that the request leaves out, and that
// only an admin key makes a box with more than the configuration gives.
func TestLimitsOfABoxFromASnapshot(t *testing.T) {
	t.Parallel()
	host := policy.Limits{policy.LimitConnections: 100, policy.LimitStreams: 100, policy.LimitUpstreams: 100, policy.LimitQuota: policy.Unlimited}
	before := api.BoxLimits{
		Operator: policy.Limits{policy.LimitConnections: 500, policy.LimitStreams: 50, policy.LimitQuota: 1 << 30},
		Own:      policy.Limits{policy.LimitConnections: 400, policy.LimitUpstreams: 10},
	}
	for role, want := range map[api.Role]policy.Limits{
		api.RoleAdmin:   {policy.LimitConnections: 400, policy.LimitStreams: 20, policy.LimitUpstreams: 10, policy.LimitQuota: 1 << 30},
		api.RoleCreator: {policy.LimitConnections: 100, policy.LimitStreams: 20, policy.LimitUpstreams: 10, policy.LimitQuota: 1 << 30},
	} {
		caller := api.Caller{Key: "key_1", Role: role}
		change := api.LimitChange{policy.LimitStreams: 20}
		asked, err := api.BoxLimits{}.Changed(caller, host, change)
		if err != nil {
			t.Fatal(err)
		}
		got := (&snapshotHost{}).limits(api.WithCaller(t.Context(), caller), before, &api.CreateRequest{Limits: asked, LimitChange: change})
		if got.Of(host) != want {
			t.Errorf("%s: %v, want %v", role, got.Of(host).Map(), want.Map())
		}
	}
}

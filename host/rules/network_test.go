package rules

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/policy/name"
)

// both returns the change to a mode and to the header rule with a value.
func both(t *testing.T, spec policy.Spec, value string) api.PolicyChange {
	t.Helper()
	return api.PolicyChange{Spec: spec, Headers: &api.HeaderChange{Rules: rule(t, value)}}
}

// TestNetworkIsOneChange: a change of policy and header rules applies one plan, has one version of each, checks both preconditions,
// and is compared with the policy in force without a change.
func TestNetworkIsOneChange(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	plans := 0
	g.kernel.Before = func(policy.BoxID, policy.KernelPlan) error { plans++; return nil }
	made, err := g.SetPolicy(t.Context(), "b1", both(t, allowAll, "canary-1"), nil)
	if err != nil || plans != 1 || made.Version != 2 || made.Headers.Version != 1 || made.Was.Spec.Mode != policy.ModeDenyAll || len(made.Headers.Was) != 0 {
		t.Fatalf("%d plans, %+v, %v", plans, made, err)
	}
	shown, err := g.Network(t.Context(), "b1")
	if err != nil || shown.Version != 2 || shown.Headers.Version != 1 || valueOf(shown.Headers.Rules) != "canary-1" {
		t.Errorf("%+v %v", shown, err)
	}
	for _, stale := range []struct{ policy, headers uint64 }{{1, 1}, {2, 0}, {2, 2}, {3, 1}} {
		next := both(t, denyAll, "canary-2")
		next.Headers.IfMatch = &stale.headers
		if _, err := g.SetPolicy(t.Context(), "b1", next, &stale.policy); !errors.Is(err, api.ErrPrecondition) {
			t.Errorf("%+v: %v", stale, err)
		}
		if _, err := g.Replay(t.Context(), "b1", next, api.ReplayQuery{}, &stale.policy); !errors.Is(err, api.ErrPrecondition) {
			t.Errorf("dry run, %+v: %v", stale, err)
		}
	}
	if got := g.state("b1"); got != (seen{mode: policy.ModeAllowAll, own: "canary-1", applied: "canary-1", open: true}) || plans != 1 {
		t.Errorf("after changes that were refused: %+v", got)
	}
	if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: denyAll}, nil); err != nil {
		t.Fatal(err)
	}
	if got := g.state("b1"); got.own != "canary-1" {
		t.Errorf("a change of the policy alone has changed the header rules: %+v", got)
	}
}

// TestNetworkInTheHistory: no version of the policy is shown beside header rules that it was never in force with.
func TestNetworkInTheHistory(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	ctx := context.WithoutCancel(t.Context())
	for i, spec := range []policy.Spec{allowAll, denyAll, allowAll} {
		if _, err := g.SetPolicy(ctx, "b1", both(t, spec, "canary-"+string(rune('1'+i))), nil); err != nil {
			t.Fatal(err)
		}
	}
	for version := uint64(2); version <= 4; version++ {
		doc, err := NewVersions(g.db.History).PolicyVersion(ctx, "b1", version)
		if err != nil || len(doc.HeaderRules) != 1 || doc.HeaderRules[0].Version != version-1 || !doc.HeaderRules[0].Since.Equal(doc.Since) {
			t.Errorf("version %d: %+v %v", version, doc.HeaderRules, err)
		}
		if text, _ := json.Marshal(doc); strings.Contains(string(text), "canary") {
			t.Errorf("the value of a header rule is in %s", text)
		}
	}
}

// TestNeverAMixedPair: readers of the compiled policy, as the proxy and DNS are, see the policy and the header rule of one change,
// however often both change.
func TestNeverAMixedPair(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	pairs := map[policy.Mode]api.PolicyChange{policy.ModeAllowAll: both(t, allowAll, "open"), policy.ModeDenyAll: both(t, denyAll, "closed")}
	if _, err := g.SetPolicy(t.Context(), "b1", pairs[policy.ModeDenyAll], nil); err != nil {
		t.Fatal(err)
	}
	b, err := g.boxes.Find("b1")
	host, errHost := name.Parse("api.example.com")
	if err := errors.Join(err, errHost); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for ctx.Err() == nil {
				c := b.Policy.Load()
				r, _ := c.HeaderRule(policy.Request{Name: host, Port: 443})
				if got := valueOf([]policy.HeaderRule{r}); got != valueOf(pairs[c.Spec().Mode].Headers.Rules) {
					t.Errorf("the policy %s was in force with the header rule %q", c.Spec().Mode, got)
					return
				}
			}
		})
	}
	for i := range 200 {
		mode := []policy.Mode{policy.ModeAllowAll, policy.ModeDenyAll}[i%2]
		if _, err := g.SetPolicy(t.Context(), "b1", pairs[mode], nil); err != nil {
			t.Fatal(err)
		}
		if shown, err := g.Network(t.Context(), "b1"); err != nil || valueOf(shown.Headers.Rules) != valueOf(pairs[shown.Spec.Mode].Headers.Rules) {
			t.Errorf("shown: %s with %v, %v", shown.Spec.Mode, shown.Headers, err)
		}
	}
	stop()
	readers.Wait()
}

package rules

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/observe"
	"boxgate/policy"
	"boxgate/policy/name"
)

// lookup returns a summary with a refused look-up by version 1 of the policy.
func lookup(host string) func(context.Context, policy.BoxID) (observe.Summary, error) {
	o := observe.Of(&audit.Event{
		Time: time.Now(), Box: "b1", Stage: policy.StageDNS, Protocol: policy.UDP, Name: host, Verdict: policy.Deny, Action: audit.ActionSink, Reason: name.ReasonDenyAll, Version: 1,
	})
	return func(context.Context, policy.BoxID) (observe.Summary, error) {
		return observe.Summary{Observations: []observe.Observation{o}, Overflow: 7}, nil
	}
}

// A replay and a dry run leave the store, the policy in force and the kernel as they were, and have the errors of the change.
func TestDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	g.observed = lookup("api.example.com")
	before, applied := g.state("b1"), 0
	g.kernel.Before = func(policy.BoxID, policy.KernelPlan) error { applied++; return nil }
	stored, err := os.ReadFile(filepath.Join(g.dir, "boxgate.db"))
	if err != nil {
		t.Fatal(err)
	}
	custom := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"api.example.com"}}
	got, err := g.Replay(t.Context(), "b1", api.PolicyChange{Spec: custom}, api.ReplayQuery{}, nil)
	if err != nil || got.Version != 1 || got.Overflow != 7 || got.Result.Opens.Count != 1 || got.Result.Control.Reproduced.Count != 1 || len(got.Authority.Gained) != 1 {
		t.Errorf("%+v %v", got, err)
	}
	two := uint64(2)
	if _, err := g.Replay(t.Context(), "b1", api.PolicyChange{Spec: custom}, api.ReplayQuery{}, &two); !errors.Is(err, api.ErrPrecondition) {
		t.Errorf("another version: %v", err)
	}
	for what, set := range map[string]api.PolicyChange{
		"no list": {Spec: policy.Spec{Mode: policy.ModeCustom}}, "no such policy": {Named: "nope"}, "no such lease": {Spec: custom, Keep: &[]api.LeaseEntry{{Allow: true, Entry: "x.example.com"}}},
	} {
		_, dry := g.Replay(t.Context(), "b1", set, api.ReplayQuery{}, nil)
		if _, err := g.SetPolicy(t.Context(), "b1", set, nil); err == nil || dry == nil || err.Error() != dry.Error() {
			t.Errorf("%s: %v, and the change %v", what, dry, err)
		}
	}
	after, err := os.ReadFile(filepath.Join(g.dir, "boxgate.db"))
	if err != nil || !slices.Equal(after, stored) {
		t.Errorf("the store has changed: %v", err)
	}
	if now := g.state("b1"); now != before || applied > 0 {
		t.Errorf("%+v, and before %+v", now, before)
	}
	if got, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: custom}, nil); err != nil || got.Version != 2 {
		t.Errorf("the next version is %d: %v", got.Version, err)
	}
}

// The candidate is compiled with the inputs of the box: the ceiling and the header rules count.
func TestReplayHasTheInputsOfTheBox(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	g.observed = lookup("api.example.com")
	if _, err := g.SetGlobalHeaders(t.Context(), rule(t, "x"), nil); err != nil {
		t.Fatal(err)
	}
	ceiling, err := policy.NewCeiling(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"other.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	set := api.PolicyChange{Spec: allowAll}
	headers := func(role api.Role) (headers []string) {
		ctx := api.WithCaller(t.Context(), api.Caller{Key: "k", Role: role})
		got, err := g.Replay(ctx, "b1", set, api.ReplayQuery{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range got.Authority.Gained {
			headers = append(headers, l.Headers...)
		}
		return headers
	}
	if got := headers(api.RoleAdmin); !slices.Equal(got, []string{"api.example.com:443"}) {
		t.Errorf("header rules %v", got)
	}
	if got := headers(api.RoleBox); len(got) > 0 {
		t.Errorf("a key of the box sees the header rules of all boxes: %v", got)
	}
	g.shared.ceiling = ceiling
	if got, err := g.Replay(t.Context(), "b1", set, api.ReplayQuery{}, nil); err != nil || got.Result.Opens.Count != 0 || got.Result.Denied.Count != 1 || len(got.Authority.Gained) == 0 {
		t.Errorf("beyond the ceiling: %+v %v", got, err)
	}
}

// Replays of keys wait for each other, and those of the operator for none.
func TestReplaysWaitForEachOther(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	g.replaying <- struct{}{}
	ctx, cancel := context.WithCancel(api.WithCaller(t.Context(), api.Caller{Key: "k", Role: api.RoleBox}))
	cancel()
	if _, err := g.Replay(ctx, "b1", api.PolicyChange{Spec: allowAll}, api.ReplayQuery{}, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	admin := api.WithCaller(t.Context(), api.Caller{Role: api.RoleAdmin})
	if got, err := g.Replay(admin, "b1", api.PolicyChange{Spec: allowAll}, api.ReplayQuery{}, nil); err != nil || !got.Unobserved {
		t.Error(got.Unobserved, err)
	}
	<-g.replaying
	leave, err := g.replays.Enter(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	if _, err := g.Replay(ctx, "b1", api.PolicyChange{Spec: allowAll}, api.ReplayQuery{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a second replay of a key: %v", err)
	}
	other := api.WithCaller(t.Context(), api.Caller{Key: "other", Role: api.RoleBox})
	if _, err := g.Replay(other, "b1", api.PolicyChange{Spec: allowAll}, api.ReplayQuery{}, nil); err != nil {
		t.Errorf("a replay of another key: %v", err)
	}
}

// TestAttackLargeReplay: a replay of policies with as many names and ports as a key can set ends with its context.
func TestAttackLargeReplay(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	set := api.PolicyChange{Spec: policy.Spec{Mode: policy.ModeCustom}}
	for i := range policy.MaxEntries / 2 {
		set.Spec.AllowedDomains = append(set.Spec.AllowedDomains, fmt.Sprintf("*.n%d.example", i), fmt.Sprintf("*:%d", 1+i))
	}
	ctx, cancel := context.WithTimeout(api.WithCaller(t.Context(), api.Caller{Key: "k", Role: api.RoleBox}), 200*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := g.Replay(ctx, "b1", set, api.ReplayQuery{}, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("it took %s", took)
	}
}

// TestReplayAgainstAVersion: a candidate is compared with an earlier version of the policy, whatever is in force, and without the
// temporary entries of either.
func TestReplayAgainstAVersion(t *testing.T) {
	t.Parallel()
	g, _ := newLeasing(t)
	g.observed = lookup("api.example.com")
	allowing := func(names ...string) api.PolicyChange {
		return api.PolicyChange{Spec: policy.Spec{Mode: policy.ModeCustom, AllowedDomains: names}}
	}
	for _, set := range []api.PolicyChange{allowing("a.example.com"), allowing("a.example.com", "b.example.com"), allowing("c.example.com")} {
		if _, err := g.SetPolicy(t.Context(), "b1", set, nil); err != nil {
			t.Fatal(err)
		}
	}
	g.lease(true, time.Hour, "d.example.com")
	got, err := g.Replay(t.Context(), "b1", allowing("a.example.com", "b.example.com"), api.ReplayQuery{Against: 2}, nil)
	if err != nil || len(got.Authority.Gained) != 1 || len(got.Authority.Lost) != 0 {
		t.Errorf("from version 2 to 3: %+v, %v", got.Authority, err)
	}
	got, err = g.Replay(t.Context(), "b1", allowing("a.example.com", "b.example.com"), api.ReplayQuery{}, nil)
	if err != nil || len(got.Authority.Gained) != 2 || len(got.Authority.Lost) != 2 {
		t.Errorf("from the policy in force to version 3: %+v, %v", got.Authority, err)
	}
	if _, err := g.Replay(t.Context(), "b1", allowing("a.example.com"), api.ReplayQuery{Against: 9}, nil); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("against a version that never was: %v", err)
	}
}

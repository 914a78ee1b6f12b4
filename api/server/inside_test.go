package server

import (
	"context"
	"errors"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/audit/trail"
	"boxgate/policy"
	"boxgate/quota"
)

// fullTrail is a trail that cannot be written.
type fullTrail struct{}

// Append implements [Trail].
func (fullTrail) Append(trail.Entry) (uint64, error) { return 0, errors.New("no room") }

// AppendAll implements [Trail].
func (fullTrail) AppendAll([]trail.Entry) (uint64, error) { return 0, errors.New("no room") }

// TestWorkOfOtherProtocols: work for a client of another protocol needs the permissions of a session, a place in the quotas of its key, and
// an entry in the audit trail.
func TestWorkOfOtherProtocols(t *testing.T) {
	t.Parallel()
	var limits quota.Limits
	limits[quota.Commands] = 1
	f, dir := withTrail(t, func(c *Config) { c.Quotas = quota.New(quota.Config{Defaults: limits}) })
	box := policy.BoxID(f.create(t, `{}`))
	own := api.Caller{Key: "key_1", Name: "own", Role: api.RoleBox, Box: box}
	use := func(c api.Caller, to policy.BoxID) Use {
		return Use{Caller: c, Box: to, Remote: "ssh, 192.0.2.7", What: "ssh command", Valid: func() bool { return true }}
	}
	never := func(context.Context) (map[string]any, error) {
		t.Error("it ran")
		return nil, nil
	}
	ran := 0
	work := func(ctx context.Context) (map[string]any, error) {
		if api.CallerOf(ctx) != own || api.CallOf(ctx).Route != "ssh command" || quota.ScopeOf(ctx) == nil {
			t.Errorf("the context of work: %+v", api.CallerOf(ctx))
		}
		if ran++; ran == 1 { // while it runs, the quota is used up
			if err := f.api.Perform(t.Context(), use(own, box), never); err == nil || !strings.Contains(err.Error(), "commands") {
				t.Errorf("a second command: %v", err)
			}
		}
		return map[string]any{"run": "run_1"}, nil
	}
	for range 2 {
		if err := f.api.Perform(t.Context(), use(own, box), work); err != nil {
			t.Fatal(err)
		}
	}
	if ran != 2 {
		t.Errorf("ran %d times", ran)
	}
	if err := f.api.Perform(t.Context(), use(own, box), func(context.Context) (map[string]any, error) { return nil, api.ErrNotFound }); !errors.Is(err, api.ErrNotFound) {
		t.Error(err)
	}
	for what, c := range map[string]api.Caller{
		"another box": {Key: "key_2", Role: api.RoleBox, Box: "other"}, "a reader": {Key: "key_3", Role: api.RoleReader}, "an auditor": {Key: "key_4", Role: api.RoleAuditor},
		"an approver": {Key: "key_5", Role: api.RoleApprover}, "a creator of other boxes": {Key: "key_6", Role: api.RoleCreator}, "no role": {Key: "key_7"},
	} {
		if err := f.api.Perform(t.Context(), use(c, box), never); err == nil || f.api.MayUse(t.Context(), c, box) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if admin := (api.Caller{Key: api.OperatorKey, Role: api.RoleAdmin}); !f.api.MayUse(t.Context(), admin, box) || !f.api.MayUse(t.Context(), own, box) {
		t.Error("who may use a box")
	}
	list, text := entries(t, dir)
	counts := map[trail.Kind]int{}
	for _, e := range list {
		if e.Route == "ssh command" {
			counts[e.Kind]++
		}
	}
	if counts[trail.Call] != 3 || counts[trail.Answer] != 3 || counts[trail.Refused] != 7 || !strings.Contains(text, `"change":{"run":"run_1"}`) {
		t.Errorf("%v in the trail: %s", counts, text)
	}

	full := serve(t, func(c *Config) { c.Trail = fullTrail{} })
	if err := full.api.Perform(t.Context(), use(api.Caller{Key: api.OperatorKey, Role: api.RoleAdmin}, "box1"), never); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("without a trail: %v", err)
	}
}

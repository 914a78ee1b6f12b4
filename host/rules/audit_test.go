package rules

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/host/lease"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store"
)

// by returns a context for calls with a role.
func by(t *testing.T, role api.Role) context.Context {
	return api.WithCaller(t.Context(), api.Caller{Key: "key_1", Role: role, Box: "b1"})
}

// audit has the policy of the box audited.
func (g *gateway) audit(lasts time.Duration) api.PolicyState {
	g.t.Helper()
	g.auditBy = string(api.RoleAdmin)
	s, err := g.SetEnforcement(by(g.t, api.RoleAdmin), "b1", lasts, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	return s
}

// TestAuditBeginsAndEnds: while the policy is audited everything passes for the reason would_deny, then the policy is enforced again; by
// its end, a call, or a change of the policy that does not keep the audit.
func TestAuditBeginsAndEnds(t *testing.T) {
	t.Parallel()
	g, h := newLeasing(t)
	if s := g.audit(time.Hour); !g.allows("a.example.com") || len(s.Leases) != 1 || !s.Leases[0].Audit || s.Leases[0].Left != time.Hour || s.Version != 2 {
		t.Fatalf("%+v", s)
	}
	b, _ := g.boxes.Find("b1")
	if shown := b.View().Policy.Leases; len(shown) != 1 || !shown[0].Audit { // as for a proposed policy, which says that it is audited
		t.Errorf("the box is shown with %+v", shown)
	}
	if !b.Policy.Load().IsAudited() || b.Policy.Load().Spec().Mode != policy.ModeDenyAll {
		t.Error("not an audit of the policy")
	}
	h.pass(59 * time.Minute)
	g.endDueLeases()
	if !g.allows("a.example.com") {
		t.Error("ended before its time")
	}
	if doc, err := NewVersions(g.db.History).PolicyVersion(t.Context(), "b1", 2); err != nil || len(doc.Entries) != 1 || doc.Entries[0].Action != api.ActionAudit {
		t.Errorf("the history has %+v, %v", doc.Entries, err)
	}
	if s := g.audit(time.Hour); len(s.Leases) != 1 || s.Leases[0].Left != time.Hour { // replaced, not added
		t.Errorf("%+v", s)
	}
	h.pass(time.Hour)
	g.endDueLeases()
	if s := g.policyNow(); g.allows("a.example.com") || len(s.Leases) != 0 || s.Version != 4 {
		t.Errorf("%+v", s)
	}
	if entries := g.entriesOf(4); len(entries) != 1 || entries[0].KeyID != "key_1" {
		t.Errorf("the audit trail has %+v", entries)
	}
	for what, end := range map[string]func() error{
		"enforce": func() error { _, err := g.SetEnforcement(t.Context(), "b1", 0, nil); return err },
		"PUT": func() error {
			_, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: policy.Spec{Mode: policy.ModeDenyAll}}, nil)
			return err
		},
		"all leases": func() error {
			_, err := g.EndLeases(t.Context(), "b1", func(api.LeaseEntry) bool { return true }, nil)
			return err
		},
	} {
		g.audit(time.Hour)
		if err := end(); err != nil || g.allows("a.example.com") {
			t.Errorf("%s: %v, allowed %v", what, err, g.allows("a.example.com"))
		}
	}
	g.audit(time.Hour)
	keep := []api.LeaseEntry{{Allow: true, Audit: true}}
	if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: policy.Spec{Mode: policy.ModeDenyAll}, Keep: &keep}, nil); err != nil || !g.allows("a.example.com") {
		t.Error("an audit that was to be kept ended", err)
	}
}

// TestAuditByRole: the configuration says which keys may begin an audit, and for how long. All that may change a policy may end it.
func TestAuditByRole(t *testing.T) {
	t.Parallel()
	g, _ := newLeasing(t)
	for least, may := range map[string][]api.Role{
		"": nil, "off": nil, "admin": {api.RoleAdmin}, "box-creator": {api.RoleAdmin, api.RoleCreator}, "one-box": {api.RoleAdmin, api.RoleCreator, api.RoleBox},
	} {
		g.auditBy = least
		for _, role := range append(slices.Clone(api.Roles), "") {
			_, err := g.SetEnforcement(by(t, role), "b1", time.Hour, nil)
			if want := slices.Contains(may, role); want != (err == nil) || !want && !errors.Is(err, api.ErrForbidden) {
				t.Errorf("policy.audit %q, a key with the role %q: %v", least, role, err)
			}
		}
		if _, err := g.SetEnforcement(by(t, api.RoleBox), "b1", 0, nil); err != nil {
			t.Errorf("policy.audit %q: %v", least, err)
		}
	}
	g.auditBy = "admin"
	for _, lasts := range []time.Duration{api.MaxAudit + time.Second, -time.Second} {
		if _, err := g.SetEnforcement(by(t, api.RoleAdmin), "b1", lasts, nil); err == nil {
			t.Errorf("an audit of %v", lasts)
		}
	}
	if _, err := g.SetEnforcement(by(t, api.RoleAdmin), "b1", time.Hour, new(uint64(1))); !errors.Is(err, api.ErrPrecondition) {
		t.Error(err)
	}
}

// TestAuditClosesAtItsEnd: the end of an audit is enforced whatever the clocks do, and if the policy cannot be compiled then, the box is
// closed. An audit that claims to last longer than a day is none.
func TestAuditClosesAtItsEnd(t *testing.T) {
	t.Parallel()
	for what, wall := range map[string]time.Duration{"forward": 48 * time.Hour, "back": -48 * time.Hour} {
		g, h := newLeasing(t)
		g.audit(time.Hour)
		h.wall.Store(int64(wall))
		g.endDueLeases()
		if g.allows("a.example.com") != (wall < 0) {
			t.Errorf("%s: allowed %v", what, wall > 0)
		}
		h.pass(time.Hour)
		g.endDueLeases()
		if g.allows("a.example.com") {
			t.Errorf("%s: allowed after its time", what)
		}
	}
	g, h := newLeasing(t)
	g.audit(time.Hour)
	b, _ := g.boxes.Find("b1")
	b.Record.PlaceholderKey = name.Secret{}
	h.pass(time.Hour)
	g.endDueLeases()
	if b.Policy.Load() != nil || b.View().Status != api.StatusError {
		t.Error("the box is open under an audit that has ended")
	}
	long := lease.NewAudit(api.MaxAudit+time.Hour, h.now())
	if _, audit := withLeases(policy.Spec{Mode: policy.ModeDenyAll}, []store.Lease{long}); audit {
		t.Error("an audit of more than a day")
	}
	unreadable := store.Lease{Entry: "no entry", ExpiresAt: long.ExpiresAt}
	if spec, audit := withLeases(policy.Spec{Mode: policy.ModeAllowAll}, []store.Lease{lease.NewAudit(time.Hour, h.now()), unreadable}); audit || spec.Mode != policy.ModeDenyAll {
		t.Error("an audit lifts a denial that cannot be read")
	}
}

// TestAuditOpensNoDenial: temporary denials stay closed, also beside deny-all, which has no list for them.
func TestAuditOpensNoDenial(t *testing.T) {
	t.Parallel()
	for _, spec := range []policy.Spec{
		{Mode: policy.ModeDenyAll}, {Mode: policy.ModeAllowAll}, {Mode: policy.ModeCustom, AllowedDomains: []string{"evil.test", "ok.test"}},
		{Mode: policy.ModeCustom, Precedence: policy.PrecedenceSpecific, AllowedDomains: []string{"evil.test"}, DeniedDomains: []string{"*.bad.test"}},
	} {
		g, _ := newLeasing(t)
		if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: spec}, nil); err != nil {
			t.Fatal(err)
		}
		g.lease(false, time.Hour, "evil.test", "*.evil.test")
		g.audit(time.Hour)
		if !g.allows("ok.test") || g.allows("evil.test") || g.allows("x.evil.test") {
			t.Errorf("%+v: %v, %v, %v", spec, g.allows("ok.test"), g.allows("evil.test"), g.allows("x.evil.test"))
		}
	}
}

// TestAuditOutlivesTheGateway: a stored audit goes on after a restart until its end, and not beyond it.
func TestAuditOutlivesTheGateway(t *testing.T) {
	t.Parallel()
	g, h := newLeasing(t)
	g.audit(time.Hour)
	stored, err := g.store.Policy("b1")
	if err != nil {
		t.Fatal(err)
	}
	for passed, want := range map[time.Duration]bool{time.Minute: true, time.Hour: false} {
		h.wall.Store(int64(passed))
		h.since.Store(int64(passed))
		running := g.shared.running(g.shared.RebaseLeases(stored.Leases))
		if _, audit := withLeases(stored.Spec, running); audit != want {
			t.Errorf("after %v: %v", passed, audit)
		}
	}
}

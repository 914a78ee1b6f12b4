package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/policy/dialect"
	"boxgate/policy/document"
)

// newSharing returns a gateway whose boxes b1 and b2 follow the named policy "web", which denies everything; b3 has its own
// policy.
func newSharing(t *testing.T) (*gateway, *fakeClock) {
	t.Helper()
	g, h := newLeasing(t)
	g.addBox("b2")
	g.addBox("b3")
	g.name("web", denyAll)
	for _, id := range []policy.BoxID{"b1", "b2"} {
		if s, err := g.SetPolicy(t.Context(), id, api.PolicyChange{Named: "web"}, nil); err != nil || s.Named != "web" || s.Version != 2 {
			t.Fatalf("%+v %v", s, err)
		}
	}
	return g, h
}

func (g *gateway) name(name string, spec policy.Spec) {
	g.t.Helper()
	if _, err := g.SetNamedPolicy(g.t.Context(), name, spec, nil); err != nil {
		g.t.Fatal(err)
	}
}

// named returns a named policy as the API shows it.
func (g *gateway) named(name string) api.NamedPolicy {
	g.t.Helper()
	all, err := g.NamedPolicies(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	for _, n := range all {
		if n.Name == name {
			return n
		}
	}
	return api.NamedPolicy{}
}

// checkBoxes checks that each of the boxes, and the named policy they follow, has the given mode and version, and is open
// accordingly.
func (g *gateway) checkBoxes(when string, mode policy.Mode, version uint64, ids ...policy.BoxID) {
	g.t.Helper()
	for _, id := range ids {
		s, err := g.Policy(g.t.Context(), id)
		if got := g.state(id); err != nil || got.mode != mode || got.open != (mode == policy.ModeAllowAll) || got.closed || s.Named != "web" || s.Version != version {
			g.t.Errorf("%s: %s has %+v, %+v %v", when, id, got, s, err)
		}
	}
	if n := g.named("web"); n.Spec.Mode != mode || len(n.Boxes) != len(ids) {
		g.t.Errorf("%s: the named policy has mode %s, for %d boxes", when, n.Spec.Mode, len(n.Boxes))
	}
}

// A change of a named policy reaches exactly the boxes that follow it, and survives a restart.
func TestNamedPolicyReachesItsBoxes(t *testing.T) {
	t.Parallel()
	g, _ := newSharing(t)
	g.checkBoxes("at first", policy.ModeDenyAll, 2, "b1", "b2")
	g.name("web", allowAll)
	g.checkBoxes("changed", policy.ModeAllowAll, 3, "b1", "b2")
	if g.state("b3") != before {
		t.Errorf("b3 follows nothing, and has %+v", g.state("b3"))
	}
	again := openGateway(t, g.copyOf())
	again.checkBoxes("after a restart", policy.ModeAllowAll, 3, "b1", "b2")
	if r, err := again.db.Verify(); err != nil || len(r.Problems) > 0 {
		t.Errorf("%+v %v", r, err)
	}

	old := uint64(1)
	if _, err := g.SetNamedPolicy(t.Context(), "web", denyAll, &old); !errors.Is(err, api.ErrPrecondition) {
		t.Error(err)
	}
	if _, err := g.SetPolicy(t.Context(), "b2", api.PolicyChange{Spec: denyAll}, nil); err != nil {
		t.Fatal(err)
	}
	g.checkBoxes("b2 has its own", policy.ModeAllowAll, 3, "b1")
	if g.state("b2") != before {
		t.Errorf("b2: %+v", g.state("b2"))
	}
	_, err := g.SetPolicy(t.Context(), "b2", api.PolicyChange{Named: "missing"}, nil)
	if wrong := (*document.InvalidError)(nil); !errors.As(err, &wrong) || wrong.Problems[0].Pointer != "/named" {
		t.Error(err)
	}
}

// Whichever box rejects the change, by an error or a panic, all boxes keep the old policy, and the change can be
// repeated.
func TestNamedPolicyChangesForAllOrNone(t *testing.T) {
	t.Parallel()
	for _, failing := range []policy.BoxID{"b1", "b2"} {
		for _, panics := range []bool{false, true} {
			g, _ := newSharing(t)
			failed := false
			g.kernel.Before = func(id policy.BoxID, _ policy.KernelPlan) error {
				if id != failing || failed {
					return nil
				}
				if failed = true; panics {
					panic("fake")
				}
				return errFake
			}
			when := fmt.Sprintf("%s fails, panics=%v", failing, panics)
			if _, err := g.SetNamedPolicy(t.Context(), "web", allowAll, nil); !errors.Is(err, api.ErrUnavailable) || !failed {
				t.Errorf("%s: %v", when, err)
			}
			g.checkBoxes(when, policy.ModeDenyAll, 2, "b1", "b2")
			g.nothingStaged(when)
			g.name("web", allowAll)
			g.checkBoxes(when+", again", policy.ModeAllowAll, 4, "b1", "b2") // versions are not reused
		}
	}
}

// A gateway that dies during a change of a named policy starts with the old one in all boxes, at whatever step it died. A
// store that fails then closes them.
func TestNamedPolicyAndASuddenEnd(t *testing.T) {
	t.Parallel()
	g, _ := newSharing(t)
	var died []string
	g.kernel.Before = func(policy.BoxID, policy.KernelPlan) error { died = append(died, g.copyOf()); return nil }
	g.name("web", allowAll)
	if len(died) != 2 {
		t.Fatalf("the kernel was called %d times", len(died))
	}
	for i, dir := range died {
		openGateway(t, dir).checkBoxes(fmt.Sprintf("death at box %d", i), policy.ModeDenyAll, 2, "b1", "b2")
	}

	g, _ = newSharing(t)
	calls := 0
	g.kernel.Before = func(policy.BoxID, policy.KernelPlan) error {
		if calls++; calls == 2 {
			_ = g.db.Close()
		}
		return nil
	}
	if _, err := g.SetNamedPolicy(t.Context(), "web", allowAll, nil); !errors.Is(err, api.ErrUnavailable) {
		t.Error(err)
	}
	if !g.state("b1").closed || !g.state("b2").closed {
		t.Error("a box is open under a policy that could not be stored")
	}
	openGateway(t, g.dir).checkBoxes("after a start", policy.ModeDenyAll, 2, "b1", "b2")
}

// A box that rejects both the new policy and the old one is closed. The others keep the old one.
func TestNamedPolicyClosesABoxWithoutAWayBack(t *testing.T) {
	t.Parallel()
	g, _ := newSharing(t)
	g.kernel.Before = func(id policy.BoxID, _ policy.KernelPlan) error {
		if id == "b2" {
			return errFake
		}
		return nil
	}
	if _, err := g.SetNamedPolicy(t.Context(), "web", allowAll, nil); err == nil {
		t.Error("the change succeeded")
	}
	if got := g.state("b1"); got != before || !g.state("b2").closed {
		t.Errorf("b1 has %+v, b2 %+v", got, g.state("b2"))
	}
}

// Leases stay on top of a named policy through its changes, denials take precedence, and the rollback of a change does
// not apply ended leases again.
func TestNamedPolicyBelowLeases(t *testing.T) {
	t.Parallel()
	g, h := newSharing(t)
	g.lease(true, time.Hour, "a.example.com", "b.example.com")
	g.lease(false, 2*time.Hour, "c.example.com")
	g.name("web", policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"c.example.com", "d.example.com"}, DeniedDomains: []string{"b.example.com"}})
	for name, want := range map[string]bool{"a.example.com": true, "b.example.com": false, "c.example.com": false, "d.example.com": true} {
		if g.allows(name) != want {
			t.Errorf("%s is allowed: %v", name, !want)
		}
	}
	if s := g.policyNow(); s.Named != "web" || len(s.Leases) != 3 {
		t.Errorf("%+v", s)
	}
	failed := false
	g.kernel.Before = func(id policy.BoxID, _ policy.KernelPlan) error {
		if id == "b2" && !failed {
			failed = true
			h.pass(time.Hour)
			return errFake
		}
		return nil
	}
	if _, err := g.SetNamedPolicy(t.Context(), "web", allowAll, nil); err == nil || g.allows("a.example.com") || g.allows("c.example.com") || !g.allows("d.example.com") {
		t.Errorf("rolled back: %v, an ended lease is applied: %v", err, g.allows("a.example.com"))
	}
}

// The ceiling limits named policies like all others.
func TestNamedPolicyBelowTheCeiling(t *testing.T) {
	t.Parallel()
	g, _ := newSharing(t)
	ceiling, err := policy.NewCeiling(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"a.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	g.shared.ceiling = ceiling
	n, err := g.SetNamedPolicy(t.Context(), "web", policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"a.example.com", "b.example.com"}}, nil)
	if err != nil || !g.allows("a.example.com") || g.allows("b.example.com") || len(n.Warnings) != 1 || !strings.Contains(n.Warnings[0].Message, "policy.ceiling") {
		t.Errorf("%+v %v", n, err)
	}
}

// A named policy in use cannot be deleted; the error names the boxes.
func TestNamedPolicyInUseStays(t *testing.T) {
	t.Parallel()
	g, _ := newSharing(t)
	_, err := g.DeleteNamedPolicy(t.Context(), "web", nil)
	if !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "b1, b2") {
		t.Error(err)
	}
	for _, id := range []policy.BoxID{"b1", "b2"} {
		if _, err := g.SetPolicy(t.Context(), id, api.PolicyChange{Spec: denyAll}, nil); err != nil {
			t.Fatal(err)
		}
	}
	other := uint64(7)
	if _, err := g.DeleteNamedPolicy(t.Context(), "web", &other); !errors.Is(err, api.ErrPrecondition) {
		t.Error(err)
	}
	if _, err := g.DeleteNamedPolicy(t.Context(), "web", nil); err != nil || g.named("web").Name != "" {
		t.Error(err)
	}
	if _, err := g.DeleteNamedPolicy(t.Context(), "web", nil); !errors.Is(err, api.ErrNotFound) {
		t.Error(err)
	}
	if all, err := openGateway(t, g.copyOf()).NamedPolicies(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("after a restart: %v %v", all, err)
	}
}

// A process that is being replaced refuses changes of named policies.
func TestNamedPolicyWhileTheStoreIsLent(t *testing.T) {
	t.Parallel()
	g, _ := newSharing(t)
	g.boxes.HandedOver.Store(true)
	if _, err := g.SetNamedPolicy(t.Context(), "web", allowAll, nil); !errors.Is(err, state.ErrHandedOver) {
		t.Error(err)
	}
	if _, err := g.DeleteNamedPolicy(t.Context(), "web", nil); !errors.Is(err, state.ErrHandedOver) {
		t.Error(err)
	}
}

// A key that may add temporary entries to a box cannot keep the operator from setting a named policy with the maximum
// number of entries.
func TestTemporaryEntriesHoldUpNoNamedPolicy(t *testing.T) {
	t.Parallel()
	g, _ := newSharing(t)
	long := policy.Spec{Mode: policy.ModeCustom}
	for i := range 10_000 {
		long.DeniedDomains = append(long.DeniedDomains, fmt.Sprintf("n%d.example", i))
	}
	body, err := json.Marshal(long)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dialect.ParseSpec(body); err != nil {
		t.Fatal(err)
	}
	g.name("web", policy.Spec{Mode: policy.ModeCustom, DeniedDomains: []string{"old.example"}})
	var entries []string
	for i := range mostLeases {
		entries = append(entries, fmt.Sprintf("lease%d.example", i))
	}
	g.lease(false, time.Hour, entries...)
	g.name("web", long)
	for name, want := range map[string]bool{"n9999.example": false, "lease255.example": false, "old.example": true} {
		if got := g.allows(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	long.DeniedDomains = append(long.DeniedDomains, "onemore.example")
	if body, err = json.Marshal(long); err != nil {
		t.Fatal(err)
	}
	if _, err := dialect.ParseSpec(body); err == nil {
		t.Error("a policy has more entries than it may")
	}
}

package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/config"
	"boxgate/host/keys"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/policy/dialect"
	"boxgate/policy/document"
	quotas "boxgate/quota"
	"boxgate/store"
)

// sharing is a gateway whose boxes b1 and b2 follow the named policy "web", which denies everything; b3 has one of its own.
func sharing(t *testing.T) (*gateway, *hands) {
	t.Helper()
	g, h := leasing(t)
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

// say fails unless every one of the boxes, and the named policy that they follow, says the mode, is open as that says, and has a version.
func (g *gateway) say(when string, mode policy.Mode, version uint64, ids ...policy.BoxID) {
	g.t.Helper()
	for _, id := range ids {
		s, err := g.Policy(g.t.Context(), id)
		if got := g.state(id); err != nil || got.mode != mode || got.open != (mode == policy.ModeAllowAll) || got.closed || s.Named != "web" || s.Version != version {
			g.t.Errorf("%s: %s has %+v, %+v %v", when, id, got, s, err)
		}
	}
	if n := g.named("web"); n.Spec.Mode != mode || len(n.Boxes) != len(ids) {
		g.t.Errorf("%s: the named policy says %s, for %d boxes", when, n.Spec.Mode, len(n.Boxes))
	}
}

// A named policy changes in all boxes that follow it and in no other, and stays through a restart.
func TestNamedPolicyReachesItsBoxes(t *testing.T) {
	t.Parallel()
	g, _ := sharing(t)
	g.say("at first", policy.ModeDenyAll, 2, "b1", "b2")
	g.name("web", allowAll)
	g.say("changed", policy.ModeAllowAll, 3, "b1", "b2")
	if g.state("b3") != before {
		t.Errorf("b3 follows nothing, and has %+v", g.state("b3"))
	}
	again := openGateway(t, g.copyOf())
	again.say("after a restart", policy.ModeAllowAll, 3, "b1", "b2")
	if r, err := again.store.Verify(); err != nil || len(r.Problems) > 0 {
		t.Errorf("%+v %v", r, err)
	}

	old := uint64(1)
	if _, err := g.SetNamedPolicy(t.Context(), "web", denyAll, &old); !errors.Is(err, api.ErrPrecondition) {
		t.Error(err)
	}
	if _, err := g.SetPolicy(t.Context(), "b2", api.PolicyChange{Spec: denyAll}, nil); err != nil {
		t.Fatal(err)
	}
	g.say("b2 has its own", policy.ModeAllowAll, 3, "b1")
	if g.state("b2") != before {
		t.Errorf("b2: %+v", g.state("b2"))
	}
	_, err := g.SetPolicy(t.Context(), "b2", api.PolicyChange{Named: "missing"}, nil)
	if wrong := (*document.InvalidError)(nil); !errors.As(err, &wrong) || wrong.Problems[0].Pointer != "/named" {
		t.Error(err)
	}
}

// Whichever box does not take the change, and whether that is an error or a panic, all boxes keep the old policy, and the change
// can be made again.
func TestNamedPolicyChangesForAllOrNone(t *testing.T) {
	t.Parallel()
	for _, failing := range []policy.BoxID{"b1", "b2"} {
		for _, panics := range []bool{false, true} {
			g, _ := sharing(t)
			failed := false
			g.kernel.before = func(id policy.BoxID, _ policy.KernelPlan) error {
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
			g.say(when, policy.ModeDenyAll, 2, "b1", "b2")
			g.nothingStaged(when)
			g.name("web", allowAll)
			g.say(when+", again", policy.ModeAllowAll, 4, "b1", "b2") // no version is used twice
		}
	}
}

// A gateway that dies while a named policy changes starts with the old one in all boxes, wherever it was; a store that fails
// then closes them.
func TestNamedPolicyAndASuddenEnd(t *testing.T) {
	t.Parallel()
	g, _ := sharing(t)
	var died []string
	g.kernel.before = func(policy.BoxID, policy.KernelPlan) error { died = append(died, g.copyOf()); return nil }
	g.name("web", allowAll)
	if len(died) != 2 {
		t.Fatalf("the kernel was asked %d times", len(died))
	}
	for i, dir := range died {
		openGateway(t, dir).say(fmt.Sprintf("death at box %d", i), policy.ModeDenyAll, 2, "b1", "b2")
	}

	g, _ = sharing(t)
	calls := 0
	g.kernel.before = func(policy.BoxID, policy.KernelPlan) error {
		if calls++; calls == 2 {
			_ = g.store.Close()
		}
		return nil
	}
	if _, err := g.SetNamedPolicy(t.Context(), "web", allowAll, nil); !errors.Is(err, api.ErrUnavailable) {
		t.Error(err)
	}
	if !g.state("b1").closed || !g.state("b2").closed {
		t.Error("a box is open under a policy that could not be stored")
	}
	openGateway(t, g.dir).say("after a start", policy.ModeDenyAll, 2, "b1", "b2")
}

// A box that takes neither the new policy nor the old one is closed; the others have the old one.
func TestNamedPolicyClosesABoxWithoutAWayBack(t *testing.T) {
	t.Parallel()
	g, _ := sharing(t)
	g.kernel.before = func(id policy.BoxID, _ policy.KernelPlan) error {
		if id == "b2" {
			return errFake
		}
		return nil
	}
	if _, err := g.SetNamedPolicy(t.Context(), "web", allowAll, nil); err == nil {
		t.Error("a success")
	}
	if got := g.state("b1"); got != before || !g.state("b2").closed {
		t.Errorf("b1 has %+v, b2 %+v", got, g.state("b2"))
	}
}

// Leases stay on top of a named policy through its changes, denied wins, and the roll-back of a change puts no lease in force that
// has ended.
func TestNamedPolicyBelowLeases(t *testing.T) {
	t.Parallel()
	g, h := sharing(t)
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
	g.kernel.before = func(id policy.BoxID, _ policy.KernelPlan) error {
		if id == "b2" && !failed {
			failed = true
			h.pass(time.Hour)
			return errFake
		}
		return nil
	}
	if _, err := g.SetNamedPolicy(t.Context(), "web", allowAll, nil); err == nil || g.allows("a.example.com") || g.allows("c.example.com") || !g.allows("d.example.com") {
		t.Errorf("rolled back: %v, a lease that has ended is in force: %v", err, g.allows("a.example.com"))
	}
}

// The ceiling bounds a named policy as it does any other.
func TestNamedPolicyBelowTheCeiling(t *testing.T) {
	t.Parallel()
	g, _ := sharing(t)
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

// A named policy in use is not deleted; the refusal names the boxes.
func TestNamedPolicyInUseStays(t *testing.T) {
	t.Parallel()
	g, _ := sharing(t)
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

// A process that is being replaced changes no named policy.
func TestNamedPolicyWhileTheStoreIsLent(t *testing.T) {
	t.Parallel()
	g, _ := sharing(t)
	g.boxes.Lent.Store(true)
	if _, err := g.SetNamedPolicy(t.Context(), "web", allowAll, nil); !errors.Is(err, state.ErrLent) {
		t.Error(err)
	}
	if _, err := g.DeleteNamedPolicy(t.Context(), "web", nil); !errors.Is(err, state.ErrLent) {
		t.Error(err)
	}
}

// Boxes that are made, and begin and cease to follow a policy, while it changes, never say anything else than it does.
func TestNamedPolicyAmongOtherChanges(t *testing.T) {
	t.Parallel()
	g, _ := sharing(t)
	l := &lifecycle{store: g.store, log: zap.NewNop(), boxes: g.boxes, shared: g.shared, holdings: unbounded(g)}
	l.addrs = config.Addresses{PoolV4: netip.MustParsePrefix("10.200.0.0/24"), PoolV6: netip.MustParsePrefix("fd42::/64")}
	var all sync.WaitGroup
	try := func(f func(i int) error) {
		all.Go(func() {
			for i := range 15 {
				if err := f(i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	try(func(i int) error {
		_, err := g.SetNamedPolicy(t.Context(), "web", []policy.Spec{allowAll, denyAll}[i%2], nil)
		return err
	})
	try(func(i int) error {
		_, err := g.SetPolicy(t.Context(), "b1", []api.PolicyChange{{Spec: denyAll}, {Named: "web"}}[i%2], nil)
		return err
	})
	try(func(int) error {
		_, err := g.AddLeases(t.Context(), "b2", api.LeaseRequest{Entries: []string{"x.example.com"}, Lasts: time.Hour}, nil)
		return err
	})
	try(func(int) error {
		b, err := l.admit(t.Context(), api.CreateRequest{Named: "web"}, nil, origin{})
		if err != nil {
			return err
		}
		defer b.Unlock()
		return (&provisioning{lifecycle: l, box: b}).storeInitial(t.Context())
	})
	try(func(int) error { _, err := g.SetGlobalHeaders(t.Context(), rule(t, "v"), nil); return err })
	all.Wait()
	want := g.named("web").Spec.Mode
	if n := len(g.boxes.All()); n != 18 {
		t.Errorf("there are %d boxes", n)
	}
	for _, b := range g.boxes.All() {
		stored, err := g.store.Policy(b.ID)
		if s := b.Timed.Load(); err != nil || s.Named != stored.Named || s.Version != stored.Version || s.Named == "web" && (s.Spec.Mode != want || stored.Spec.Mode != want) {
			t.Errorf("%s: %+v, stored %+v, %v; the named policy says %s", b.ID, s, stored, err, want)
		}
	}
}

// A new box begins with what the named policy says at the moment from which a change of it finds the box.
func TestNewBoxFollowsANamedPolicy(t *testing.T) {
	t.Parallel()
	g, _ := sharing(t)
	l := &lifecycle{boxes: g.boxes, shared: g.shared, holdings: unbounded(g)}
	if spec, err := l.policyOfNew(policy.Spec{}, "web"); err != nil || spec.Mode != policy.ModeDenyAll {
		t.Errorf("%+v %v", spec, err)
	}
	_, err := l.policyOfNew(policy.Spec{}, "missing")
	if wrong := (*document.InvalidError)(nil); !errors.As(err, &wrong) || wrong.Problems[0].Pointer != "/network_policy/named" {
		t.Error(err)
	}
	made := state.NewBox(store.Box{ID: "b4"}, store.Policy{Spec: denyAll, Version: 1, Named: "web"}, store.Headers{}, api.Hosted{})
	if p := made.StoredPolicy(); p.Named != "web" || made.View().Policy.Named != "web" {
		t.Errorf("%+v", p)
	}
}

// Whoever may give a box temporary entries cannot keep the operator from a policy with as many entries as one may have.
func TestTemporaryEntriesHoldUpNoNamedPolicy(t *testing.T) {
	t.Parallel()
	g, _ := sharing(t)
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

// A box that is busy, be it for minutes, holds up the change of the named policy that it follows, or is to follow, and nothing else;
// and a change comes to its turn although one box or another is always busy.
func TestNamedPolicyWaitsForBusyBoxes(t *testing.T) {
	t.Parallel()
	g, _ := sharing(t)
	l := &lifecycle{store: g.store, log: zap.NewNop(), boxes: g.boxes, shared: g.shared, holdings: unbounded(g)}
	l.addrs = config.Addresses{PoolV4: netip.MustParsePrefix("10.200.0.0/24"), PoolV6: netip.MustParsePrefix("fd42::/64")}
	for what, change := range map[string]func(context.Context) error{
		"a change of the policy": func(ctx context.Context) error {
			_, err := g.SetNamedPolicy(ctx, "web", allowAll, nil)
			return err
		},
		"the choice of the policy": func(ctx context.Context) error {
			_, err := g.SetPolicy(ctx, "b2", api.PolicyChange{Named: "web"}, nil)
			return err
		},
	} {
		b2, err := g.boxes.Lock("b2")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- change(ctx) }()
		others := make(chan struct{})
		go func() {
			defer close(others)
			for range 20 {
				if _, err := g.SetPolicy(t.Context(), "b3", api.PolicyChange{Spec: denyAll}, nil); err != nil {
					t.Error(err)
				}
				b, err := l.admit(t.Context(), api.CreateRequest{Policy: denyAll}, nil, origin{})
				if err != nil {
					t.Error(err)
					return
				}
				b.Unlock()
			}
		}()
		select {
		case err := <-ended:
			t.Errorf("%s: %v although the box is busy", what, err)
			ended <- err
		case <-time.After(30 * time.Second):
			t.Errorf("%s holds up changes of other boxes", what)
		case <-others:
		}
		cancel()
		b2.Unlock()
		if err := <-ended; !errors.Is(err, context.Canceled) && err != nil {
			t.Errorf("%s: %v", what, err)
		}
		<-others
	}

	stop := make(chan struct{})
	var busy sync.WaitGroup
	for _, id := range []policy.BoxID{"b1", "b2"} {
		busy.Go(func() {
			for {
				b, err := g.boxes.Lock(id)
				if err != nil {
					t.Error(err)
					return
				}
				select {
				case <-stop:
					b.Unlock()
					return
				case <-time.After(5 * time.Millisecond):
					b.Unlock()
				}
			}
		})
	}
	for i := range 20 {
		g.name("web", []policy.Spec{allowAll, denyAll}[i%2])
		if _, err := g.SetPolicy(t.Context(), "b2", api.PolicyChange{Named: "web"}, nil); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	busy.Wait()
}

// unbounded are holdings without quotas.
func unbounded(g *gateway) *keys.Holdings {
	g.t.Helper()
	h, err := keys.NewHoldings(keys.HoldingsConfig{
		Log: zap.NewNop(), Book: quotas.New(quotas.Config{}), Boxes: g.boxes, Store: g.store,
		Layer: func(string) (int64, error) { return 0, nil }, Space: func(int64) error { return nil },
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return h
}

package rules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit/trail"
	"boxgate/fleet"
	"boxgate/fleet/shared"
	"boxgate/policy"
	"boxgate/store"
	"boxgate/store/history"
)

// oneFleet has the named policies of a fleet, which its hosts apply in turn.
type oneFleet struct {
	records map[string][]byte
	hosts   []*gateway
	changes int
	fenced  bool
	err     error // of changes
}

// Change implements [Fleet].
func (f *oneFleet) Change(_ context.Context, kind shared.Kind, everywhere bool, edit func(map[string][]byte) error) error {
	if f.changes++; f.err != nil {
		return f.err
	}
	next := maps.Clone(f.records)
	if err := edit(next); err != nil {
		return err
	}
	if kind != shared.Policies || !everywhere {
		return errors.New("a change of a named policy is not one that is in force everywhere")
	}
	f.records = next
	return f.apply()
}

// apply makes the records the present ones on all hosts. A host that cannot apply them has not acknowledged them.
func (f *oneFleet) apply() error {
	for _, g := range f.hosts {
		if err := g.ApplyFleet(f.records); err != nil {
			return fmt.Errorf("%w: %s: %w", shared.ErrBehind, g.hostID, err)
		}
	}
	return nil
}

// Fenced implements [Fleet].
func (f *oneFleet) Fenced() bool { return f.fenced }

// join makes a gateway a host of the fleet.
func (f *oneFleet) join(g *gateway, id string) *gateway {
	g.fleet, g.hostID, g.shared.named.fenced, g.fleetPatience = f, id, f.Fenced, time.Minute
	f.hosts = append(f.hosts, g)
	return g
}

// newFleet returns the hosts of a fleet, each with boxes b1 and b2 that follow the fleet's policy "web", which opens everything.
func newFleet(t *testing.T, hosts int) (f *oneFleet, list []*gateway) {
	t.Helper()
	f = &oneFleet{records: map[string][]byte{}}
	for i := range hosts {
		g, _ := newLeasing(t)
		g.addBox("b2")
		list = append(list, f.join(g, fmt.Sprintf("%06x", i)))
	}
	list[0].share("web", allowAll)
	for _, g := range list {
		for _, id := range []policy.BoxID{"b1", "b2"} {
			g.follow(id, "web")
		}
	}
	return f, list
}

// share sets a policy of the fleet.
func (g *gateway) share(name string, spec policy.Spec) api.NamedPolicy {
	g.t.Helper()
	n, err := g.SetFleetPolicy(g.t.Context(), name, spec, nil)
	if err != nil || !n.Fleet {
		g.t.Fatal(n, err)
	}
	return n
}

func (g *gateway) follow(id policy.BoxID, name string) {
	g.t.Helper()
	if _, err := g.SetPolicy(g.t.Context(), id, api.PolicyChange{Named: name}, nil); err != nil {
		g.t.Fatal(err)
	}
}

// warned reports whether the view of a named policy has a warning with these words.
func (g *gateway) warned(name, words string) bool {
	g.t.Helper()
	for _, w := range g.named(name).Warnings {
		if strings.Contains(w.Message, words) {
			return true
		}
	}
	return false
}

// TestPolicyOfTheFleet: a change on one host is in force for the boxes of all hosts that follow the policy, and survives a restart. Its
// author is in their histories and in the audit trails. ETags are the fleet's.
func TestPolicyOfTheFleet(t *testing.T) {
	t.Parallel()
	_, hosts := newFleet(t, 2)
	a, b := hosts[0], hosts[1]
	ctx := api.WithCaller(t.Context(), api.Caller{Key: "key_1", Name: "ops", Role: api.RoleAdmin})
	old := uint64(7)
	if _, err := a.SetFleetPolicy(ctx, "web", denyAll, &old); !errors.Is(err, api.ErrPrecondition) {
		t.Error(err)
	}
	now := uint64(1)
	n, err := b.SetFleetPolicy(ctx, "web", denyAll, &now)
	if err != nil || n.Version != 2 || !n.Fleet || n.Was.Mode != policy.ModeAllowAll {
		t.Fatalf("%+v, %v", n, err)
	}
	for _, g := range hosts {
		if modes := g.modes("b1", "b2"); !slices.Equal(modes, []policy.Mode{policy.ModeDenyAll, policy.ModeDenyAll}) || g.named("web").Version != 2 {
			t.Errorf("host %s: %v, version %d", g.hostID, modes, g.named("web").Version)
		}
		again := openGateway(t, g.copyOf())
		if modes := again.modes("b1", "b2"); !slices.Equal(modes, []policy.Mode{policy.ModeDenyAll, policy.ModeDenyAll}) || !again.named("web").Fleet {
			t.Errorf("after a restart: %v, %+v", modes, again.named("web"))
		}
		past, err := NewVersions(g.db.History).PolicyVersions(t.Context(), "b2", api.VersionQuery{Most: 1})
		author := map[*gateway]string{a: "000001/key_1", b: "key_1"}[g]
		if v := past.Versions; err != nil || len(v) != 1 || v[0].KeyID != author || v[0].Key != "ops" || v[0].Cause != string(history.NamedChanged) {
			t.Errorf("history of %s: %+v, %v", g.hostID, past, err)
		}
		var boxes []policy.BoxID
		if err := g.trail.Read(t.Context(), trail.Filter{Key: author}, false, func(line []byte) error {
			var e trail.Entry
			if err := json.Unmarshal(line, &e); err != nil {
				return err
			}
			if strings.Contains(e.Note, "changed on host 000001") {
				boxes = append(boxes, e.Box)
			}
			return nil
		}); err != nil || len(boxes) != 3 {
			t.Errorf("trail of %s: %v, %v", g.hostID, boxes, err)
		}
	}
}

// TestPolicyOfAHostIsNotWrittenToEtcd: changes of a host's own named policies do not reach etcd, in a fleet and while it is fenced.
func TestPolicyOfAHostIsNotWrittenToEtcd(t *testing.T) {
	t.Parallel()
	f, hosts := newFleet(t, 1)
	before := f.changes
	f.fenced, f.err = true, fleet.ErrUnreachable
	g := hosts[0]
	g.name("own", denyAll)
	g.follow("b1", "own")
	g.name("own", policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"a.example"}})
	if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: denyAll}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := g.DeleteNamedPolicy(t.Context(), "own", nil); err != nil || f.changes != before {
		t.Errorf("%v; %d changes of the fleet", err, f.changes-before)
	}
	if got := g.state("b2").mode; got != policy.ModeAllowAll {
		t.Errorf("a box of a fenced host that follows the fleet's policy: %s", got)
	}
	if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Named: "web"}, nil); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("a box begins to follow a policy that may be out of date: %v", err)
	}
	if _, err := g.SetFleetPolicy(t.Context(), "web", denyAll, nil); !errors.Is(err, api.ErrUnavailable) || g.state("b2").mode != policy.ModeAllowAll {
		t.Errorf("a change by a fenced host: %v", err)
	}
}

// TestPolicyWithTwoOwners: a name belongs to the fleet or to the host. Each is refused a change of the other's; where another host has the name
// itself, its policy stays and says so, and the fleet's is in force when it is deleted.
func TestPolicyWithTwoOwners(t *testing.T) {
	t.Parallel()
	_, hosts := newFleet(t, 2)
	a, b := hosts[0], hosts[1]
	if _, err := a.SetNamedPolicy(t.Context(), "web", denyAll, nil); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "fleet") {
		t.Errorf("a change of the fleet's policy that does not ask for one: %v", err)
	}
	if _, err := a.DeleteNamedPolicy(t.Context(), "web", nil); !errors.Is(err, api.ErrConflict) {
		t.Error(err)
	}
	b.name("own", denyAll)
	b.follow("b2", "own")
	if _, err := b.SetFleetPolicy(t.Context(), "own", allowAll, nil); !errors.Is(err, api.ErrConflict) {
		t.Errorf("the name of a policy of the host that is asked: %v", err)
	}
	if _, err := b.DeleteFleetPolicy(t.Context(), "own", nil); !errors.Is(err, api.ErrConflict) {
		t.Error(err)
	}
	if n := a.share("own", allowAll); len(n.Warnings) > 0 {
		t.Errorf("%+v", n)
	}
	if n := b.named("own"); n.Fleet || n.Spec.Mode != policy.ModeDenyAll || b.state("b2").mode != policy.ModeDenyAll || !b.warned("own", "not in force on this host") {
		t.Errorf("%+v, %s", n, b.state("b2").mode)
	}
	b.follow("b2", "web")
	if _, err := b.DeleteNamedPolicy(t.Context(), "own", nil); err != nil {
		t.Fatal(err)
	}
	if n := b.named("own"); !n.Fleet || n.Spec.Mode != policy.ModeAllowAll || len(n.Warnings) > 0 {
		t.Errorf("after the policy of the host is gone: %+v", n)
	}
}

// TestPolicyThatCannotBeInForce: a record that this version cannot read, or that a box cannot take, closes the boxes that follow it, and says
// why; the host is not behind. The next version opens them again. So does another attempt at the next start.
func TestPolicyThatCannotBeInForce(t *testing.T) {
	t.Parallel()
	f, hosts := newFleet(t, 1)
	g := hosts[0]
	for name, record := range map[string]string{
		"of a later version": `{"spec":{"mode":"allow-all"},"version":2,"quantum":true}`, "not JSON": "{", "wrong": `{"spec":{"mode":"custom","allowed_domains":["a*.com"]},"version":2}`,
		"without a version": `{"spec":{"mode":"allow-all"}}`, "large": `{"spec":{"mode":"allow-all"},"version":2}` + strings.Repeat(" ", shared.MaxValue),
	} {
		f.records["web"] = []byte(record)
		if err := f.apply(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if modes := g.modes("b1", "b2"); !slices.Equal(modes, []policy.Mode{policy.ModeDenyAll, policy.ModeDenyAll}) || !g.warned("web", "cannot be in force") {
			t.Errorf("%s: %v, %+v", name, modes, g.named("web"))
		}
		g.share("web", allowAll)
		if g.state("b1").mode != policy.ModeAllowAll || g.warned("web", "cannot be in force") {
			t.Errorf("%s, after another version: %s", name, g.state("b1").mode)
		}
	}

	failing := true
	g.kernel.Before = func(id policy.BoxID, plan policy.KernelPlan) error {
		if failing && id == "b2" && len(plan.Allowed) > 0 {
			return errFake
		}
		return nil
	}
	f.records["web"], _ = json.Marshal(fleetRecord{Spec: policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{"192.0.2.0/24"}}, Version: 9})
	attempts := 0
	for attempts < 10 {
		if attempts++; f.apply() == nil {
			break
		}
		if modes := g.modes("b1", "b2"); modes[0] != modes[1] {
			t.Errorf("attempt %d: %v", attempts, modes)
		}
	}
	if modes := g.modes("b1", "b2"); attempts != attemptsOfRecord || !slices.Equal(modes, []policy.Mode{policy.ModeDenyAll, policy.ModeDenyAll}) {
		t.Errorf("after %d attempts: %v", attempts, modes)
	}
	failing = false
	if err := f.apply(); err != nil || g.state("b1").mode != policy.ModeDenyAll {
		t.Errorf("%v, %s", err, g.state("b1").mode)
	}
	again := f.join(openGateway(t, g.copyOf()), g.hostID)
	f.hosts = []*gateway{again}
	if err := f.apply(); err != nil || again.state("b1").mode != policy.ModeCustom || again.state("b2").mode != policy.ModeCustom {
		t.Errorf("after a start: %v, %v", err, again.modes("b1", "b2"))
	}
}

// TestPolicyOfTheFleetForAllOrNone: if one box fails to take a change, all boxes of the host keep the old policy, and the host is behind.
// The next attempt changes all of them.
func TestPolicyOfTheFleetForAllOrNone(t *testing.T) {
	t.Parallel()
	f, hosts := newFleet(t, 1)
	g := hosts[0]
	failed := false
	g.kernel.Before = func(id policy.BoxID, _ policy.KernelPlan) error {
		if id == "b2" && !failed {
			failed = true
			return errFake
		}
		return nil
	}
	if _, err := g.SetFleetPolicy(t.Context(), "web", denyAll, nil); !errors.Is(err, api.ErrUnavailable) || !failed {
		t.Errorf("a host that could not apply the change: %v", err)
	}
	if modes := g.modes("b1", "b2"); !slices.Equal(modes, []policy.Mode{policy.ModeAllowAll, policy.ModeAllowAll}) {
		t.Errorf("old and new are mixed: %v", modes)
	}
	g.nothingStaged("the change failed")
	if err := f.apply(); err != nil {
		t.Fatal(err)
	}
	if modes := g.modes("b1", "b2"); !slices.Equal(modes, []policy.Mode{policy.ModeDenyAll, policy.ModeDenyAll}) || g.named("web").Version != 2 {
		t.Errorf("tried again: %v", modes)
	}
}

// TestPolicyOfTheFleetBelowTheCeiling: the ceiling of a host bounds the fleet's policies there.
func TestPolicyOfTheFleetBelowTheCeiling(t *testing.T) {
	t.Parallel()
	_, hosts := newFleet(t, 2)
	a, b := hosts[0], hosts[1]
	ceiling, err := policy.NewCeiling(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"a.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	b.shared.ceiling = ceiling
	a.share("web", policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"a.example.com", "b.example.com"}})
	if !a.allows("b.example.com") || !b.allows("a.example.com") || b.allows("b.example.com") {
		t.Errorf("beyond the ceiling of the host: %v", b.allows("b.example.com"))
	}
	if s := b.policyNow(); len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0].Message, "policy.ceiling") {
		t.Errorf("the box on the host below its ceiling: %+v", s.Warnings)
	}
}

// TestPolicyThatTheFleetDeletes: it is refused while boxes of the asked host follow it. Boxes of other hosts keep it as it is, also after a
// restart; no further box may follow it, and it is gone with the last one. When the fleet makes it again, they follow that.
func TestPolicyThatTheFleetDeletes(t *testing.T) {
	t.Parallel()
	f, hosts := newFleet(t, 2)
	a, b := hosts[0], hosts[1]
	if _, err := a.DeleteFleetPolicy(t.Context(), "web", nil); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "b1, b2") {
		t.Errorf("boxes follow it: %v", err)
	}
	for _, id := range []policy.BoxID{"b1", "b2"} {
		if _, err := a.SetPolicy(t.Context(), id, api.PolicyChange{Spec: denyAll}, nil); err != nil {
			t.Fatal(err)
		}
	}
	other := uint64(7)
	if _, err := a.DeleteFleetPolicy(t.Context(), "web", &other); !errors.Is(err, api.ErrPrecondition) {
		t.Error(err)
	}
	if _, err := a.DeleteFleetPolicy(t.Context(), "web", nil); err != nil || a.named("web").Name != "" {
		t.Errorf("%v, %+v", err, a.named("web"))
	}
	if _, err := a.DeleteFleetPolicy(t.Context(), "web", nil); !errors.Is(err, api.ErrNotFound) {
		t.Error(err)
	}
	check := func(when string, b *gateway) {
		t.Helper()
		if modes := b.modes("b1", "b2"); !slices.Equal(modes, []policy.Mode{policy.ModeAllowAll, policy.ModeAllowAll}) || !b.warned("web", "deleted") {
			t.Errorf("%s: %v, %+v", when, modes, b.named("web"))
		}
	}
	check("deleted elsewhere", b)
	again := f.join(openGateway(t, b.copyOf()), b.hostID)
	f.hosts = []*gateway{a, again}
	if err := f.apply(); err != nil {
		t.Fatal(err)
	}
	check("after a restart", again)
	if r, err := again.db.Verify(); err != nil || len(r.Problems) > 0 {
		t.Errorf("%+v %v", r, err)
	}
	again.addBox("b3")
	if _, err := again.SetPolicy(t.Context(), "b3", api.PolicyChange{Named: "web"}, nil); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a further box: %v", err)
	}
	a.share("web", denyAll)
	if modes := again.modes("b1", "b2"); !slices.Equal(modes, []policy.Mode{policy.ModeDenyAll, policy.ModeDenyAll}) || again.warned("web", "deleted") {
		t.Errorf("made again: %v", modes)
	}
	if _, err := a.DeleteFleetPolicy(t.Context(), "web", nil); err != nil {
		t.Fatal(err)
	}
	for _, id := range []policy.BoxID{"b1", "b2"} {
		if _, err := again.SetPolicy(t.Context(), id, api.PolicyChange{Spec: denyAll}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := again.DeleteFleetPolicy(t.Context(), "web", nil); err != nil || again.named("web").Name != "" {
		t.Errorf("the copy without boxes: %v", err)
	}
}

// TestHostLeavesTheFleet: its boxes keep the policies of the fleet, which are the host's own then.
func TestHostLeavesTheFleet(t *testing.T) {
	t.Parallel()
	_, hosts := newFleet(t, 1)
	alone := openGateway(t, hosts[0].copyOf())
	if err := alone.leaveFleet(); err != nil {
		t.Fatal(err)
	}
	if n := alone.named("web"); n.Fleet || len(n.Boxes) != 2 || alone.state("b1").mode != policy.ModeAllowAll {
		t.Errorf("%+v, %s", n, alone.state("b1").mode)
	}
	alone.name("web", denyAll)
	if modes := alone.modes("b1", "b2"); !slices.Equal(modes, []policy.Mode{policy.ModeDenyAll, policy.ModeDenyAll}) {
		t.Errorf("a change by the host: %v", modes)
	}
	if _, err := alone.SetFleetPolicy(t.Context(), "other", denyAll, nil); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a policy of no fleet: %v", err)
	}
}

// TestFleetFromAnOlderBackup: etcd was restored from a backup, in which the policy has an earlier version. That one is in force.
func TestFleetFromAnOlderBackup(t *testing.T) {
	t.Parallel()
	f, hosts := newFleet(t, 1)
	g := hosts[0]
	g.share("web", denyAll)
	backup := maps.Clone(f.records)
	g.share("web", allowAll)
	g.share("web", allowAll)
	f.records = backup
	if err := f.apply(); err != nil || g.state("b1").mode != policy.ModeDenyAll || g.named("web").Version != 2 {
		t.Errorf("%v, %s, version %d", err, g.state("b1").mode, g.named("web").Version)
	}
	if n := g.share("web", allowAll); n.Version != 3 || g.state("b2").mode != policy.ModeAllowAll {
		t.Errorf("%+v, %s", n, g.state("b2").mode)
	}
	g.share("early", denyAll)
	f.records = map[string][]byte{} // from before the first policy
	if err := f.apply(); err != nil || g.state("b1").mode != policy.ModeAllowAll || !g.warned("web", "deleted") || g.named("early").Name != "" {
		t.Errorf("%v, %s, %+v", err, g.state("b1").mode, g.named("early"))
	}
}

// TestBoundsOfTheFleetsPolicies: their number, the size of one and of all are bounded, with errors that say so. Records beyond the
// bounds, and names of resources, are ignored on hosts.
func TestBoundsOfTheFleetsPolicies(t *testing.T) {
	t.Parallel()
	f, hosts := newFleet(t, 1)
	g := hosts[0]
	g.apply("team/web", denyAll)
	large := policy.Spec{Mode: policy.ModeCustom}
	for i := range 9_000 {
		large.DeniedDomains = append(large.DeniedDomains, fmt.Sprintf("%060d.n%d.example", i, i))
	}
	refused := func(words string, name string, spec policy.Spec) {
		t.Helper()
		if _, err := g.SetFleetPolicy(t.Context(), name, spec, nil); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", words, err)
		}
	}
	refused("at most 524288", "large", large)
	for i := 1; i < mostNamed; i++ {
		f.records[fmt.Sprintf("p%d", i)] = f.records["web"]
	}
	refused("at most 256", "more", denyAll)
	clear(f.records)
	for i := range 9 {
		f.records[fmt.Sprint("p", i)] = []byte(strings.Repeat(" ", 500_000))
	}
	refused("the limit is 4194304", "more", denyAll)

	record, _ := json.Marshal(fleetRecord{Spec: allowAll, Version: 9})
	f.records = map[string][]byte{"team.web": record, "": record, "A": record, "@x": record}
	for i := range mostNamed + 10 {
		f.records[fmt.Sprintf("p%03d", i)] = record
	}
	if err := f.apply(); err != nil {
		t.Fatal(err)
	}
	all, err := g.NamedPolicies(t.Context())
	if n := g.named("team.web"); err != nil || n.Fleet || n.Spec.Mode != policy.ModeDenyAll || len(all) != mostNamed+2 {
		t.Errorf("%v; the policy of the resource is %+v; there are %d policies", err, n, len(all))
	}
	g.name("own", denyAll) // the fleet's do not use up the host's
}

// TestChangesOfTheFleetThatWait: a box that another change holds does not hold up the changes of the fleet for longer than a time; the host is
// behind until then.
func TestChangesOfTheFleetThatWait(t *testing.T) {
	t.Parallel()
	f, hosts := newFleet(t, 1)
	g := hosts[0]
	b, err := g.boxes.Find("b2")
	if err != nil {
		t.Fatal(err)
	}
	b.Lock()
	g.fleetPatience = 10 * time.Millisecond
	for range attemptsOfRecord + 1 { // none closes the boxes
		ctx, cancel := context.WithTimeout(t.Context(), g.fleetPatience)
		_, err := g.lockFollowersWithin(ctx, "web")
		cancel()
		if !errors.Is(err, errBusy) {
			t.Fatal(err)
		}
	}
	if _, err := g.SetFleetPolicy(t.Context(), "web", denyAll, nil); !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), "b2") {
		t.Errorf("a box is busy: %v", err)
	}
	b.Unlock()
	if err := f.apply(); err != nil || g.state("b2").mode != policy.ModeDenyAll || g.warned("web", "cannot be in force") {
		t.Errorf("the box is free: %v, %s", err, g.state("b2").mode)
	}

	g.fleetPatience = 100 * time.Millisecond
	g.shared.named.changing.RLock()
	for i := range mostNamed - 1 {
		f.records[fmt.Sprint("p", i)] = f.records["web"]
	}
	began := time.Now()
	if err := f.apply(); !errors.Is(err, errBusy) || time.Since(began) > mostNamed/4*g.fleetPatience {
		t.Errorf("many policies that wait: %v after %v", err, time.Since(began))
	}
	g.shared.named.changing.RUnlock()
}

// TestSameVersionThatIsNotStored: after etcd was restored, a stricter policy may have the version of the one in force. If its commit fails, the host
// has not applied it, and does so later.
func TestSameVersionThatIsNotStored(t *testing.T) {
	t.Parallel()
	f, hosts := newFleet(t, 1)
	g := hosts[0]
	f.records["web"], _ = json.Marshal(fleetRecord{Spec: denyAll, Version: g.named("web").Version, Host: g.hostID})
	g.kernel.Before = func(policy.BoxID, policy.KernelPlan) error {
		g.kernel.Before = nil
		return g.store.AbortNamed("web", []policy.BoxID{"b1", "b2"}) // nothing is left to commit
	}
	if err := f.apply(); err == nil || g.state("b1").mode != policy.ModeAllowAll {
		t.Errorf("the commit failed: %v, %s", err, g.state("b1").mode)
	}
	if err := f.apply(); err != nil || g.state("b1").mode != policy.ModeDenyAll {
		t.Errorf("again: %v, %s", err, g.state("b1").mode)
	}
}

// TestForgedAuthorOfTheFleet: a record in etcd that names the operator's key of this host, or texts with control characters, is not taken for a
// change that this key made.
func TestForgedAuthorOfTheFleet(t *testing.T) {
	t.Parallel()
	f, hosts := newFleet(t, 1)
	g := hosts[0]
	for _, by := range []fleetRecord{{Host: g.hostID, KeyID: store.OperatorKey, Key: "operator"}, {Host: g.hostID, KeyID: "\x1b[2J" + strings.Repeat("x", 1000)}, {}} {
		by.Spec, by.Version = denyAll, g.named("web").Version+1
		f.records["web"], _ = json.Marshal(by)
		if err := f.apply(); err != nil {
			t.Fatal(err)
		}
		past, err := NewVersions(g.db.History).PolicyVersions(t.Context(), "b1", api.VersionQuery{Most: 1})
		if v := past.Versions[0]; err != nil || v.KeyID == store.OperatorKey || v.KeyID == "" || strings.Contains(v.KeyID, "\x1b") || len(v.KeyID) > 600 {
			t.Errorf("%+v: %+v, %v", by, v, err)
		}
	}
}

// TestFailuresOfTheFleet: the error of a failed change says whether it was made, or that this is unknown.
func TestFailuresOfTheFleet(t *testing.T) {
	t.Parallel()
	f, hosts := newFleet(t, 1)
	for _, err := range []error{fleet.ErrUnreachable, shared.ErrFenced, shared.ErrBehind, shared.ErrContended, shared.ErrUnsupported, shared.ErrTooLarge} {
		f.err = err
		if _, got := hosts[0].SetFleetPolicy(t.Context(), "web", denyAll, nil); !errors.Is(got, api.ErrUnavailable) || !errors.Is(got, err) {
			t.Errorf("%v: %v", err, got)
		}
		if _, got := hosts[0].DeleteFleetPolicy(t.Context(), "other", nil); !errors.Is(got, api.ErrUnavailable) {
			t.Errorf("%v: %v", err, got)
		}
	}
	if hosts[0].state("b1").mode != policy.ModeAllowAll {
		t.Error("a change that failed is in force")
	}
}

// FuzzFleetRecord: a record of another host opens nothing that it does not say, whatever its bytes are.
func FuzzFleetRecord(f *testing.F) {
	f.Add([]byte(`{"spec":{"mode":"allow-all"},"version":1,"host":"a1b2c3"}`))
	f.Add([]byte(`{"spec":{"mode":"custom","allowed_domains":["a.example"]},"version":18446744073709551615,"at":"2026-11-30T18:00:00Z"}`))
	f.Add([]byte(`{"spec":null}`))
	f.Fuzz(func(t *testing.T, record []byte) {
		r, err := readFleet(record)
		if err != nil && (r.Spec.Mode != "" || r.Version != 0) {
			t.Errorf("%+v with %v", r, err)
		}
		if err == nil {
			text, err := json.Marshal(r)
			if again, errAgain := readFleet(text); err != nil || errAgain != nil || !equalSpecs(again.Spec, r.Spec) {
				t.Errorf("%s: %v, %v", text, err, errAgain)
			}
		}
	})
}

package rules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/host/lease"
	"boxgate/policy"
	"boxgate/store"
	"boxgate/store/history"
)

// decided is what a decision tells about the policy that made it, with the policy itself.
type decided struct {
	box     policy.BoxID
	version uint64
	text    string // with the temporary entries that had not ended
	now     lease.Now
}

// deciding is a gateway that remembers each policy that was in force for any moment.
type deciding struct {
	*gateway
	clock *fakeClock
	mu    sync.Mutex // guards seen, fail and died: leases of several boxes end at the same time
	seen  map[decided]bool
	fail  bool           // the next change of kernel rules fails
	died  func()         // called before the next change of kernel rules
	edits map[string]int // by kind
}

// Recheck implements [enforce.Proxy].
func (d *deciding) Recheck(id policy.BoxID) { d.note(id) }

// CloseBox implements [enforce.Proxy].
func (d *deciding) CloseBox(policy.BoxID) {}

// note remembers the policy of a box that is in force.
func (d *deciding) note(id policy.BoxID) {
	b, err := d.boxes.Find(id)
	if err != nil || b.Policy.Load() == nil {
		return
	}
	c := b.Policy.Load()
	text, err := json.Marshal(c.Spec())
	if err != nil {
		d.t.Error(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen[decided{id, c.Version(), string(text), d.clock.now()}] = true
}

// start starts a gateway over a state directory, in place of the one before.
func (d *deciding) start(dir string) {
	if d.gateway != nil {
		if err := d.db.Close(); err != nil {
			d.t.Fatal(err)
		}
		d.gateway = openGatewayAt(d.t, dir, d.clock.now)
	}
	d.net.Proxy, d.leasesChanged = d, make(chan struct{}, 1)
	d.kernel.Before = func(id policy.BoxID, _ policy.KernelPlan) error {
		d.note(id)
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.died != nil {
			d.died()
			d.died = nil
			return errFake
		}
		if d.fail {
			d.fail = false
			return errFake
		}
		return nil
	}
	for _, b := range d.boxes.All() {
		d.note(b.ID)
	}
}

// edit makes one random change. Changes that are refused, and those that fail on purpose, are fine.
func (d *deciding) edit(r *rand.Rand) {
	ctx := api.WithCaller(d.t.Context(), api.Caller{Key: "k1", Name: "deploy", Role: api.RoleAdmin})
	id := policy.BoxID(fmt.Sprintf("b%d", 1+r.IntN(3)))
	name := func() string { return fmt.Sprintf("h%d.example", r.IntN(6)) }
	spec := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{name()}}
	d.fail = r.IntN(8) == 0
	kind := []string{"set", "set", "named", "follow", "lease", "lease", "end", "pass", "pass", "headers"}[r.IntN(10)]
	var err error
	switch kind {
	case "set":
		if r.IntN(3) == 0 {
			spec = []policy.Spec{allowAll, denyAll}[r.IntN(2)]
		}
		_, err = d.SetPolicy(ctx, id, api.PolicyChange{Spec: spec}, nil)
	case "named":
		_, err = d.SetNamedPolicy(ctx, "web", spec, nil)
	case "follow":
		_, err = d.SetPolicy(ctx, id, api.PolicyChange{Named: "web"}, nil)
	case "lease":
		_, err = d.AddLeases(ctx, id, api.LeaseRequest{Allow: r.IntN(2) == 0, Entries: []string{name()}, Lasts: time.Duration(1+r.IntN(5)) * time.Minute}, nil)
	case "end":
		_, err = d.EndLeases(ctx, id, func(api.LeaseEntry) bool { return r.IntN(2) == 0 }, nil)
	case "pass":
		d.clock.pass(time.Duration(r.IntN(3)) * time.Minute)
		d.endDueLeases()
		d.fail = false
		d.endDueLeases()
	case "headers":
		_, err = d.SetHeaders(ctx, id, rule(d.t, fmt.Sprint("canary-", r.IntN(9))), nil)
	}
	d.fail = false
	if err == nil {
		d.edits[kind]++
	}
}

// check finds the text of each policy that was in force.
func (d *deciding) check() {
	d.t.Helper()
	h := NewVersions(d.db.History)
	for was := range d.seen {
		doc, err := h.PolicyVersion(d.t.Context(), was.box, was.version)
		if err != nil {
			d.t.Errorf("version %d of %s: %v", was.version, was.box, err)
			continue
		}
		if texts := textsOf(d.t, doc.Policy, doc.Entries, was.now.Wall); !slices.Contains(texts, was.text) {
			d.t.Errorf("version %d of %s (%s, %s) leads to\n%s; in force was\n%s", was.version, was.box, doc.Cause, doc.Result, texts, was.text)
		}
	}
}

// textsOf returns the texts that a policy has had by a time while its temporary entries ended one after the other.
func textsOf(t *testing.T, spec policy.Spec, entries []api.PastLease, by time.Time) (texts []string) {
	t.Helper()
	ends := []time.Time{{}} // when the entries end, at or before by
	for _, e := range entries {
		if !e.ExpiresAt.After(by) {
			ends = append(ends, e.ExpiresAt)
		}
	}
	for _, end := range ends {
		var running []store.Lease
		for _, e := range entries {
			if e.ExpiresAt.After(end) {
				running = append(running, store.Lease{Allow: e.Action == "allow", Entry: e.Entry})
			}
		}
		merged, _ := withLeases(spec, running)
		text, err := json.Marshal(merged)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}

// backUp writes a backup of the store.
func (d *deciding) backUp(to string) string {
	d.t.Helper()
	f, err := os.Create(to)
	if err != nil {
		d.t.Fatal(err)
	}
	if _, err := d.db.Backup(f); err != nil {
		d.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		d.t.Fatal(err)
	}
	return to
}

// TestEachVersionLeadsToItsText: in a random run of 500 changes, failing ones among them, over restarts, deaths in the
// middle of a change, and restored backups, each version that was in force for any moment leads to the policy that was in
// force, and no number stands for two policies.
func TestEachVersionLeadsToItsText(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	defer func() { t.Logf("seed %d", seed) }()
	clock := &fakeClock{}
	d := &deciding{clock: clock, seen: map[decided]bool{}, edits: map[string]int{}}
	d.gateway = openGatewayAt(t, filepath.Join(t.TempDir(), "state"), clock.now)
	if _, err := d.db.Keys.Ensure(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []policy.BoxID{"b1", "b2", "b3"} {
		d.addBox(id)
	}
	d.start(d.dir)
	var backups []string
	restored := 0
	for n := range 500 {
		d.edit(r)
		switch {
		case n%61 == 60:
			d.start(d.dir)
		case n%83 == 82:
			died := ""
			d.died = func() { died = d.copyOf() }
			d.edit(r)
			if d.died = nil; died != "" {
				d.start(died)
			}
		case n%97 == 96:
			backups = append(backups, d.backUp(filepath.Join(t.TempDir(), "backup")))
		case n%149 == 148 && len(backups) > 0:
			if err := d.db.Close(); err != nil {
				t.Fatal(err)
			}
			report, err := store.Restore(store.RestoreOptions{Dir: d.dir, From: backups[r.IntN(len(backups))], By: "uid 0"})
			if err != nil || report.HistoryLost {
				t.Fatalf("%+v, %v", report, err)
			}
			restored++
			d.gateway = openGatewayAt(t, d.dir, clock.now)
			d.start(d.dir)
		}
	}
	d.check()
	if restored == 0 || len(d.seen) < 200 || len(d.edits) < 7 {
		t.Errorf("%d restored, %d policies in force, %v", restored, len(d.seen), d.edits)
	}
	text, err := os.ReadFile(filepath.Join(d.dir, "boxgate.db"))
	if err != nil || strings.Contains(string(text), "canary-") {
		t.Errorf("a value of a header rule is in the store in the clear: %v", err)
	}
}

// TestWhoMadeAVersion: the history names the caller of each kind of change, its cause and its result, also of one that was
// rolled back.
func TestWhoMadeAVersion(t *testing.T) {
	t.Parallel()
	g, clock := newLeasing(t)
	ctx := api.WithCaller(t.Context(), api.Caller{Key: "k7", Name: "deploy", Role: api.RoleAdmin})
	ctx = api.WithCall(ctx, api.Call{Remote: "unix, uid 0 (root)", Route: "PUT /v2/box/{id}/config/network-policy"})
	set := func(spec policy.Spec) error {
		_, err := g.SetPolicy(ctx, "b1", api.PolicyChange{Spec: spec}, nil)
		return err
	}
	_, errLease := g.AddLeases(ctx, "b1", api.LeaseRequest{Allow: true, Entries: []string{"a.example"}, Lasts: time.Minute}, nil)
	clock.pass(time.Hour)
	g.endDueLeases()
	_, errNamed := g.SetNamedPolicy(ctx, "web", denyAll, nil)
	_, errFollow := g.SetPolicy(ctx, "b1", api.PolicyChange{Named: "web"}, nil)
	_, errNamedAgain := g.SetNamedPolicy(ctx, "web", allowAll, nil)
	g.kernel.Before = func(policy.BoxID, policy.KernelPlan) error {
		g.kernel.Before = nil
		return errFake
	}
	failed := set(denyAll)
	if err := errors.Join(set(allowAll), errLease, errNamed, errFollow, errNamedAgain); err != nil || failed == nil {
		t.Fatal(err, failed)
	}
	list, err := NewVersions(g.db.History).PolicyVersions(t.Context(), "b1", api.VersionQuery{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range list.Versions {
		got = append(got, fmt.Sprintf("%d %s %s %s %s %s %q named=%q leases=%d", v.Version, v.Cause, v.Result, v.KeyID, v.Key, v.Role, v.Remote, v.Named, v.Leases))
		if v.Result == "in_force" && v.Version != list.Versions[0].Version && v.Until.IsZero() || v.MadeAt.IsZero() {
			t.Errorf("%+v", v)
		}
	}
	const by = `k7 deploy admin "unix, uid 0 (root)"`
	want := []string{
		"7 set in_force " + by + ` named="" leases=0`,
		"6 set rolled_back " + by + ` named="" leases=0`,
		"5 named_policy in_force " + by + ` named="web" leases=0`,
		"4 set in_force " + by + ` named="web" leases=0`,
		`3 lease_expired in_force k7   "" named="" leases=0`,
		"2 lease_begun in_force " + by + ` named="" leases=1`,
		`1  in_force    "" named="" leases=0`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
}

// TestTheNumberOfARolledBackVersionIsNotReused: after a restart too, the next change has another number.
func TestTheNumberOfARolledBackVersionIsNotReused(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	g.kernel.Before = func(policy.BoxID, policy.KernelPlan) error {
		g.kernel.Before = nil
		return errFake
	}
	if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: allowAll}, nil); err == nil {
		t.Fatal("the change succeeded")
	}
	g = openGateway(t, g.copyOf())
	now, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: denyAll}, nil)
	if err != nil || now.Version != 3 {
		t.Errorf("version %d, %v", now.Version, err)
	}
	for version, want := range map[uint64]string{2: "rolled_back", 3: "in_force"} {
		if doc, err := NewVersions(g.db.History).PolicyVersion(t.Context(), "b1", version); err != nil || doc.Result != want {
			t.Errorf("version %d: %q, %v", version, doc.Result, err)
		}
	}
}

// TestAnEndThatCouldNotBeStored: the version that a policy gets when its leases end is in the history once the store can be
// written again, with those after it.
func TestAnEndThatCouldNotBeStored(t *testing.T) {
	t.Parallel()
	g, clock := newLeasing(t)
	g.lease(true, time.Minute, "a.example")
	g.lease(true, 3*time.Minute, "b.example")
	good := g.store
	closed := newGateway(t)
	if err := closed.db.Close(); err != nil {
		t.Fatal(err)
	}
	g.Service.store = closed.db.Rules // cannot be written
	for range 2 {
		clock.pass(2 * time.Minute)
		g.endDueLeases()
	}
	if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: allowAll}, nil); err == nil || g.allows("a.example") || g.allows("b.example") {
		t.Errorf("without a store: %v", err)
	}
	g.Service.store = good
	now, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: allowAll}, nil)
	if err != nil || now.Version != 6 {
		t.Fatalf("%+v, %v", now, err)
	}
	h := NewVersions(g.db.History)
	for version, leases := range map[uint64]int{4: 1, 5: 0} {
		if doc, err := h.PolicyVersion(t.Context(), "b1", version); err != nil || doc.Cause != string(history.LeaseExpired) || len(doc.Entries) != leases {
			t.Errorf("version %d: %+v, %v", version, doc, err)
		}
	}
}

// TestWhatDecidedAlong: a version comes with the header rules and the ceiling that applied while it was in force, without
// secrets.
func TestWhatDecidedAlong(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	ctx := context.WithoutCancel(t.Context())
	if err := g.db.History.SetCeiling(&allowAll, history.Origin{Cause: history.Configured}); err != nil {
		t.Fatal(err)
	}
	_, err1 := g.SetHeaders(ctx, "b1", rule(t, "canary-1"), nil)
	_, err2 := g.SetPolicy(ctx, "b1", api.PolicyChange{Spec: allowAll}, nil)
	err3 := errors.Join(g.db.History.SetCeiling(&denyAll, history.Origin{Cause: history.Configured}), g.db.History.SetCeiling(&denyAll, history.Origin{}))
	_, err4 := g.SetGlobalHeaders(ctx, rule(t, "canary-2"), nil)
	_, err5 := g.SetHeaders(ctx, "b1", nil, nil)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		t.Fatal(err)
	}
	doc, err := NewVersions(g.db.History).PolicyVersion(ctx, "b1", 2)
	if err != nil || len(doc.HeaderRules) != 2 || len(doc.GlobalRules) != 1 || len(doc.Ceilings) != 2 {
		t.Fatalf("%+v, %v", doc, err)
	}
	text, _ := json.Marshal(doc)
	for _, part := range []string{`"api.example.com"`, `X-Key`, `"deny-all"`, `"allow-all"`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("%s is missing in %s", part, text)
		}
	}
	if strings.Contains(string(text), "canary") {
		t.Errorf("the value of a header rule is in %s", text)
	}
	if first, err := NewVersions(g.db.History).PolicyVersion(ctx, "b1", 1); err != nil || len(first.GlobalRules) != 0 || len(first.Ceilings) != 1 {
		t.Errorf("%+v, %v", first, err)
	}
}

package rules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/audit/trail"
	"boxgate/host/handover/handovertest"
	"boxgate/host/lease"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/store"
)

// fakeClock is a clock set by the test: offsets of the wall clock and of the boot clock.
type fakeClock struct{ wall, since atomic.Int64 }

func (h *fakeClock) now() lease.Now {
	return lease.Now{Wall: time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(h.wall.Load())), Boot: "boot", Since: time.Duration(h.since.Load())}
}

func (h *fakeClock) pass(d time.Duration) { h.wall.Add(int64(d)); h.since.Add(int64(d)) }

// newLeasing returns a gateway with a box that denies everything, and its clock.
func newLeasing(t *testing.T) (*gateway, *fakeClock) {
	t.Helper()
	g, h := newGateway(t), &fakeClock{}
	g.shared.clock, g.leasesChanged = h.now, make(chan struct{}, 1)
	g.addBox("b1")
	return g, h
}

func (g *gateway) lease(allow bool, lasts time.Duration, entries ...string) {
	g.t.Helper()
	if _, err := g.AddLeases(g.t.Context(), "b1", api.LeaseRequest{Allow: allow, Entries: entries, Lasts: lasts}, nil); err != nil {
		g.t.Fatal(err)
	}
}

// TestDenialBesideExceptions: with precedence: specific a temporary denial of a zone closes its exceptions too, and they return when it
// ends. A temporary exception opens one host of a denied zone, but not under an equal denied entry.
func TestDenialBesideExceptions(t *testing.T) {
	t.Parallel()
	g, clock := newLeasing(t)
	spec := policy.Spec{Mode: policy.ModeCustom, Precedence: policy.PrecedenceSpecific, AllowedDomains: []string{"*", "ok.evil.test"}, DeniedDomains: []string{"*.evil.test", "shut.evil.test"}}
	if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: spec}, nil); err != nil {
		t.Fatal(err)
	}
	expect := func(when string, ok, other, elsewhere bool) {
		t.Helper()
		if g.allows("ok.evil.test") != ok || g.allows("other.evil.test") != other || g.allows("a.test") != elsewhere {
			t.Errorf("%s: %v, %v, %v", when, g.allows("ok.evil.test"), g.allows("other.evil.test"), g.allows("a.test"))
		}
	}
	expect("at first", true, false, true)
	g.lease(true, time.Hour, "other.evil.test")
	expect("with a temporary exception", true, true, true)
	if _, err := g.AddLeases(t.Context(), "b1", api.LeaseRequest{Allow: true, Entries: []string{"shut.evil.test:443"}, Lasts: time.Hour}, nil); err == nil {
		t.Error("an entry that an equal one denies can be allowed")
	}
	g.lease(false, time.Minute, "*.evil.test")
	expect("with a temporary denial", false, false, true)
	clock.pass(2 * time.Minute)
	g.endDueLeases()
	expect("after the denial", true, true, true)
	clock.pass(2 * time.Hour)
	g.endDueLeases()
	expect("after the exception", true, false, true)
}

// TestLeasesEndAmongManyExceptions: with precedence: specific, whatever leases a box has beside the largest policies, each one ends on
// time, and a policy that denies more is not refused because of them.
func TestLeasesEndAmongManyExceptions(t *testing.T) {
	t.Parallel()
	var hosts, zones, ranges, addresses []string
	for i := range policy.MaxEntries {
		hosts, zones = append(hosts, fmt.Sprintf("a%d.zone.test", i)), append(zones, fmt.Sprintf("*.b%d.test", i))
	}
	for i := range 96 {
		ranges = append(ranges, fmt.Sprintf("2600::/%d", 16+i))
	}
	for i := range policy.MostBeside - 3 {
		addresses = append(addresses, fmt.Sprintf("2600::%x:0:0:1", 1+i*251))
	}
	for what, c := range map[string]struct {
		spec                policy.Spec
		denied, beside, not string // leases that deny for a minute and for an hour, and a host that is denied afterwards
		allowed             []string
	}{
		"names":  {policy.Spec{AllowedDomains: hosts, DeniedDomains: zones}, "*.zone.test", "*.zone.test:443", "a0.zone.test", []string{"shut.b1.test"}},
		"ranges": {policy.Spec{AllowedDomains: []string{"a.test"}, DeniedCIDRs: ranges}, "2600::/16", "*.more.test", "x.more.test", addresses},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			g, clock := newLeasing(t)
			c.spec.Mode, c.spec.Precedence = policy.ModeCustom, policy.PrecedenceSpecific
			if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: c.spec}, nil); err != nil {
				t.Fatal(err)
			}
			g.lease(false, time.Minute, c.denied)
			g.lease(false, time.Hour, c.beside)
			g.lease(true, time.Hour, c.allowed...)
			g.lease(true, 3*time.Minute, "b.test")
			clock.pass(2 * time.Minute)
			g.endDueLeases()
			if !g.allows("b.test") || g.allows(c.not) {
				t.Errorf("after a denial: %v, %v", g.allows("b.test"), g.allows(c.not))
			}
			clock.pass(2 * time.Minute)
			g.endDueLeases()
			if g.allows("b.test") {
				t.Error("a temporary entry has not ended")
			}
		})
	}
}

// allows reports whether the applied policy allows a name.
func (g *gateway) allows(host string) bool {
	g.t.Helper()
	n, err := name.Parse(host)
	if err != nil {
		g.t.Fatal(err)
	}
	b, err := g.boxes.Find("b1")
	if err != nil {
		g.t.Fatal(err)
	}
	return b.Policy.Load().Decide(policy.Request{Stage: policy.StageConn, Name: n, Port: 443, Protocol: policy.TCP}).Allowed()
}

func (g *gateway) policyNow() api.PolicyState {
	g.t.Helper()
	s, err := g.Policy(g.t.Context(), "b1")
	if err != nil {
		g.t.Fatal(err)
	}
	return s
}

// endDueLeases ends the leases that are due, and waits for it.
func (g *gateway) endDueLeases() {
	g.endDue(g.t.Context())
	g.endingLeases.Wait()
}

func TestLeaseBeginsAndEnds(t *testing.T) {
	t.Parallel()
	g, h := newLeasing(t)
	g.lease(true, time.Hour, "a.example.com", "b.example.com")
	if s := g.policyNow(); !g.allows("a.example.com") || !g.allows("b.example.com") || len(s.Leases) != 2 || s.Leases[0].Left != time.Hour || s.Version != 2 || s.Spec.Mode != policy.ModeDenyAll {
		t.Fatalf("%+v", s)
	}
	h.pass(59 * time.Minute)
	g.lease(true, time.Hour, "b.example.com") // renewed
	if next := g.endDue(t.Context()); next > leaseTick || !g.allows("a.example.com") {
		t.Errorf("a minute before its end: next check in %v", next)
	}
	h.pass(time.Minute)
	if next := g.endDue(t.Context()); next != leaseTick {
		t.Errorf("a lease that is being ended is checked again after %v", next)
	}
	g.endingLeases.Wait()
	if s := g.policyNow(); g.allows("a.example.com") || !g.allows("b.example.com") || len(s.Leases) != 1 || s.Leases[0].Left != 59*time.Minute || s.Version != 4 {
		t.Errorf("%+v", s)
	}
	stored, err := g.store.Policy("b1")
	if err != nil || len(stored.Leases) != 1 || stored.Version != 4 {
		t.Errorf("%+v, %v", stored, err)
	}
	if _, err := g.EndLeases(t.Context(), "b1", func(api.LeaseEntry) bool { return true }, nil); err != nil || g.allows("b.example.com") {
		t.Error("an ended lease still applies", err)
	}
	if _, err := g.EndLeases(t.Context(), "b1", func(api.LeaseEntry) bool { return true }, nil); !errors.Is(err, api.ErrNotFound) {
		t.Error(err)
	}
}

// entriesOf returns the entries of the audit trail that led to a version of the box's policy.
func (g *gateway) entriesOf(version uint64) (list []trail.Entry) {
	g.t.Helper()
	err := g.trail.Read(g.t.Context(), trail.Filter{Box: "b1", PolicyVersion: version}, false, func(line []byte) error {
		var e trail.Entry
		err := json.Unmarshal(line, &e)
		list = append(list, e)
		return err
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return list
}

// TestEndsOfLeasesAreInTheTrail: for expired temporary entries, the audit trail has the version of the policy without
// them, and the key that made them.
func TestEndsOfLeasesAreInTheTrail(t *testing.T) {
	t.Parallel()
	g, h := newLeasing(t)
	_, made, err := g.db.Keys.Create(store.APIKey{Name: "ci", Role: string(api.RoleCreator)})
	if err != nil {
		t.Fatal(err)
	}
	for key, entry := range map[string]string{made.ID: "a.example.com", "key_gone": "b.example.com"} {
		ctx := api.WithCaller(t.Context(), api.Caller{Key: key})
		if _, err := g.AddLeases(ctx, "b1", api.LeaseRequest{Allow: true, Entries: []string{entry}, Lasts: time.Hour}, nil); err != nil {
			t.Fatal(err)
		}
	}
	h.pass(time.Hour)
	g.endDueLeases()
	version := g.policyNow().Version
	list := g.entriesOf(version)
	if len(list) != 2 || version != 4 {
		t.Fatalf("version %d: %+v", version, list)
	}
	for _, e := range list {
		text := string(e.Change.RawMessage)
		owner := e.KeyID == made.ID && e.Key == "ci" && e.Role == "box-creator" && strings.Contains(text, `"removed":["allow a.example.com until 2026-06-01T13:00:00Z"]`) ||
			e.KeyID == "key_gone" && e.Key == "" && strings.Contains(text, `"removed":["allow b.example.com until`)
		if e.Kind != trail.Policy || !owner || !strings.Contains(text, `"version":4`) {
			t.Errorf("%+v", e)
		}
	}
}

// A denial takes precedence over a temporary permission, whichever was made first.
func TestLeaseLosesToDenials(t *testing.T) {
	t.Parallel()
	g, h := newLeasing(t)
	g.lease(true, time.Hour, "*.example.com")
	g.lease(false, 10*time.Minute, "a.example.com")
	if g.allows("a.example.com") || !g.allows("b.example.com") {
		t.Error("denied for a time, and allowed")
	}
	h.pass(10 * time.Minute)
	g.endDueLeases()
	if !g.allows("a.example.com") {
		t.Error("a denial did not end")
	}
	custom := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"c.example.com"}, DeniedDomains: []string{"a.example.com"}}
	keep := []api.LeaseEntry{{Allow: true, Entry: "*.example.com"}}
	if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: custom, Keep: &keep}, nil); err != nil {
		t.Fatal(err)
	}
	if g.allows("a.example.com") || !g.allows("b.example.com") {
		t.Error("a lease lifts what the policy denies")
	}
	_, err := g.AddLeases(t.Context(), "b1", api.LeaseRequest{Allow: true, Entries: []string{"a.example.com"}, Lasts: time.Hour}, nil)
	if wrong := (*document.InvalidError)(nil); !errors.As(err, &wrong) || wrong.Problems[0].Pointer != "/entries/0" {
		t.Error(err)
	}
}

// Replacing a policy as a whole ends temporary permissions, but not temporary denials.
func TestLeaseAndReplacedPolicy(t *testing.T) {
	t.Parallel()
	g, _ := newLeasing(t)
	g.lease(true, time.Hour, "a.example.com")
	g.lease(false, time.Hour, "b.example.com")
	if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"b.example.com", "c.example.com"}}}, nil); err != nil {
		t.Fatal(err)
	}
	if s := g.policyNow(); g.allows("a.example.com") || g.allows("b.example.com") || !g.allows("c.example.com") || len(s.Leases) != 1 || s.Leases[0].Allow {
		t.Errorf("%+v", s)
	}
	none := []api.LeaseEntry{}
	if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: allowAll, Keep: &none}, nil); err != nil || !g.allows("b.example.com") {
		t.Error("no lease was to be kept", err)
	}
	unknown := []api.LeaseEntry{{Allow: true, Entry: "a.example.com"}}
	if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: allowAll, Keep: &unknown}, nil); err == nil {
		t.Error("a lease was kept that had ended")
	}
}

// A wall clock that is set forward ends temporary permissions; set back, it does not prolong them. It does not affect
// denials.
func TestLeaseClockJumps(t *testing.T) {
	t.Parallel()
	for name, wall := range map[string]time.Duration{"forward": 48 * time.Hour, "back": -48 * time.Hour} {
		g, h := newLeasing(t)
		g.lease(true, time.Hour, "*.example.com")
		g.lease(false, 2*time.Hour, "b.example.com")
		h.wall.Store(int64(wall))
		g.endDueLeases()
		if open := g.allows("a.example.com"); open != (wall < 0) || g.allows("b.example.com") || len(g.policyNow().Leases) == 0 {
			t.Errorf("%s: allowed %v, %+v", name, open, g.policyNow())
		}
		h.pass(time.Hour)
		g.endDueLeases()
		if g.allows("a.example.com") || g.allows("b.example.com") {
			t.Errorf("%s: allowed after its time", name)
		}
		h.pass(time.Hour)
		g.endDueLeases()
		if left := g.policyNow().Leases; len(left) != 0 {
			t.Errorf("%s: %+v", name, left)
		}
	}
}

// A lease ends even if the store cannot be written, and even if the kernel fails: then the change is retried, and a box
// whose old policy cannot be replaced is closed.
func TestLeaseEndsWhateverFails(t *testing.T) {
	t.Parallel()
	g, h := newLeasing(t)
	g.lease(true, time.Hour, "a.example.com")
	h.pass(time.Hour)
	if err := g.db.Close(); err != nil {
		t.Fatal(err)
	}
	g.endDueLeases()
	if g.allows("a.example.com") || len(g.policyNow().Leases) != 0 {
		t.Error("open, because its end could not be stored")
	}

	g, h = newLeasing(t)
	g.lease(true, time.Hour, "a.example.com")
	h.pass(time.Hour)
	calls := 0
	g.kernel.Before = func(policy.BoxID, policy.KernelPlan) error {
		if calls++; calls == 1 {
			return errors.New("injected")
		}
		return nil
	}
	g.endDueLeases()
	if g.allows("a.example.com") || len(g.policyNow().Leases) != 0 {
		t.Error("open, because the kernel failed once")
	}

	g, h = newLeasing(t)
	g.lease(true, time.Hour, "a.example.com")
	h.pass(time.Hour)
	g.kernel.Before = func(policy.BoxID, policy.KernelPlan) error { return errors.New("injected") }
	g.endDueLeases()
	if b, _ := g.boxes.Find("b1"); b.Policy.Load() != nil || b.View().Status != api.StatusError {
		t.Error("the box is open under an ended lease")
	}
}

// No other change applies an ended lease again before its end was noticed.
func TestLeaseIsNotPutBack(t *testing.T) {
	t.Parallel()
	g, h := newLeasing(t)
	g.lease(true, time.Hour, "a.example.com")
	h.pass(time.Hour)
	for name, change := range map[string]func() error{
		"global headers": func() error { _, err := g.SetGlobalHeaders(t.Context(), rule(t, "v"), nil); return err },
		"headers":        func() error { _, err := g.SetHeaders(t.Context(), "b1", rule(t, "w"), nil); return err },
		"settle": func() error {
			b, err := g.boxes.Lock("b1")
			if err != nil {
				return err
			}
			defer b.Unlock()
			return g.applyStored(b)
		},
	} {
		if err := change(); err != nil || g.allows("a.example.com") {
			t.Errorf("%s: %v, allowed %v", name, err, g.allows("a.example.com"))
		}
	}
	if s := g.policyNow(); len(s.Leases) != 0 && s.Leases[0].Left != 0 {
		t.Errorf("%+v", s)
	}
}

// KeepLeases ends leases by the real clock, and is woken for new ones.
func TestKeepLeases(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.leasesChanged = make(chan struct{}, 1)
	g.addBox("b1")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.KeepLeases(ctx) }()
	began := time.Now()
	g.lease(true, 150*time.Millisecond, "a.example.com")
	if !g.allows("a.example.com") && time.Since(began) < 150*time.Millisecond {
		t.Error("not allowed")
	}
	for deadline := time.Now().Add(time.Minute); g.allows("a.example.com"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a lease did not end")
		}
	}
	if took := time.Since(began); took < 150*time.Millisecond {
		t.Errorf("ended after %v", took)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A gateway that starts with stored leases compiles only the ones that still run.
func TestLeaseOutlivesTheGateway(t *testing.T) {
	t.Parallel()
	g, h := newLeasing(t)
	g.lease(true, time.Hour, "a.example.com")
	g.lease(true, 2*time.Hour, "b.example.com")
	stored, err := g.store.Policy("b1")
	if err != nil {
		t.Fatal(err)
	}
	h.pass(time.Hour)
	running := g.shared.running(g.shared.RebaseLeases(stored.Leases))
	if len(running) != 1 || running[0].Entry != "b.example.com" {
		t.Fatalf("%+v", running)
	}
	b := state.NewBox(mustRecord(t, g), stored, mustHeaders(t, g), api.Hosted{}, 0)
	c, err := g.shared.inputsOf(b).compile()
	if err != nil {
		t.Fatal(err)
	}
	domains := c.Spec().AllowedDomains
	if !slices.Equal(domains, []string{"b.example.com"}) {
		t.Errorf("%v are allowed", domains)
	}
}

func mustRecord(t *testing.T, g *gateway) store.Box {
	t.Helper()
	r, err := g.db.Boxes.Get("b1")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustHeaders(t *testing.T, g *gateway) store.Headers {
	t.Helper()
	h, err := g.store.Headers("b1")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// rechecked receives the boxes whose connections were checked again.
type rechecked chan policy.BoxID

func (r rechecked) Recheck(id policy.BoxID) { r <- id }
func (rechecked) CloseBox(policy.BoxID)     {}

// While another process owns the store and the kernel rules, temporary permissions still end on time.
func TestLeasesEndWhileTheStoreIsLent(t *testing.T) {
	t.Parallel()
	g, h := newLeasing(t)
	g.lease(true, time.Hour, "a.example.com")
	g.lease(true, 2*time.Hour, "b.example.com")
	seen := make(rechecked, 10)
	g.net.Proxy = seen
	g.kernel.Before = func(policy.BoxID, policy.KernelPlan) error {
		t.Error("the kernel rules were changed")
		return nil
	}
	if err := g.db.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.EndLeasesWhileDraining(ctx)
	}()
	h.pass(time.Hour)
	if id := <-seen; id != "b1" || g.allows("a.example.com") || !g.allows("b.example.com") {
		t.Errorf("%s was rechecked; a: %v, b: %v", id, g.allows("a.example.com"), g.allows("b.example.com"))
	}
	cancel()
	<-ended
}

// isClosed reports whether a box has no policy, and the API shows why.
func (g *gateway) isClosed(id policy.BoxID) bool {
	g.t.Helper()
	b := g.loadBox(id)
	return b.Policy.Load() == nil && b.View().Status == api.StatusError
}

func (g *gateway) loadBox(id policy.BoxID) *state.Box {
	g.t.Helper()
	b, err := g.boxes.Find(id)
	if err != nil {
		g.t.Fatal(err)
	}
	return b
}

// loseTokenKey makes every later compilation of a box's policy fail.
func (g *gateway) loseTokenKey(id policy.BoxID) *state.Box {
	g.t.Helper()
	b := g.loadBox(id)
	b.Record.PlaceholderKey = name.Secret{}
	return b
}

// TestABoxWhosePolicyDoesNotCompileIsClosed: whatever takes access away from a box closes it if the policy without that access does
// not compile, or its open connections cannot be cut. The policy in force would otherwise outlive the access.
func TestABoxWhosePolicyDoesNotCompileIsClosed(t *testing.T) {
	t.Parallel()
	g, h := newLeasing(t)
	g.lease(true, time.Hour, "a.example.com")
	b := g.loseTokenKey("b1")
	h.pass(time.Hour)
	g.endDueLeases()
	if !g.isClosed("b1") || len(b.Leases) != 0 {
		t.Errorf("closed %t under an ended lease: %+v", g.isClosed("b1"), b.Leases)
	}

	g, h = newLeasing(t)
	g.lease(true, time.Hour, "192.0.2.1")
	g.kernel.Cut = func(policy.BoxID) error { return errFake }
	h.pass(time.Hour)
	g.endDueLeases()
	if !g.isClosed("b1") {
		t.Error("connections of an ended lease go on")
	}

	g = newGateway(t)
	g.addBox("b1")
	b = g.loseTokenKey("b1")
	before, _ := handovertest.New(t)
	gone := &visitorsOf{}
	q := &Quota{before: before, log: zap.NewNop(), boxes: g.boxes, policies: g.Service, visitors: gone}
	q.setSpent(t.Context(), b, true)
	if !g.isClosed("b1") || !b.Spent.Load() || !slices.Equal(gone.closed, []policy.BoxID{"b1"}) {
		t.Errorf("closed %t with its quota used up, visitors of %v cut", g.isClosed("b1"), gone.closed)
	}

	g = newGateway(t)
	p := protectionOf(g, func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("9.9.9.9")}, nil })
	g.loseTokenKey("b2")
	if err := p.Update(t.Context()); err == nil || g.isClosed("b1") || !g.isClosed("b2") {
		t.Errorf("closed %t, %t without protection of a new address: %v", g.isClosed("b1"), g.isClosed("b2"), err)
	}
}

// TestAQuotaIsKeptToAlthoughTheKernelFails: a box that has used up its quota is cut off if the kernel fails once, and closed if it
// fails again.
func TestAQuotaIsKeptToAlthoughTheKernelFails(t *testing.T) {
	t.Parallel()
	for _, failures := range []int{1, 10} {
		g := newGateway(t)
		g.addBox("b1")
		if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: allowAll}, nil); err != nil {
			t.Fatal(err)
		}
		before, _ := handovertest.New(t)
		q := &Quota{before: before, log: zap.NewNop(), boxes: g.boxes, policies: g.Service, visitors: noVisitors{}}
		b, left := g.loadBox("b1"), failures
		g.kernel.Before = func(policy.BoxID, policy.KernelPlan) error {
			if left--; left >= 0 {
				return errFake
			}
			return nil
		}
		q.setSpent(t.Context(), b, true)
		if closed := g.isClosed("b1"); closed != (failures > 1) || !closed && g.allows("a.example.com") || !b.Spent.Load() {
			t.Errorf("%d failures: closed %t, open %t", failures, closed, !closed && g.allows("a.example.com"))
		}
	}
}

// TestALeaseEndsAlthoughAnotherChangeHoldsItsBox: the box is off the network from some time after the end of the lease until the
// other change ends; then it has its policy without the lease.
func TestALeaseEndsAlthoughAnotherChangeHoldsItsBox(t *testing.T) {
	t.Parallel()
	g, h := newLeasing(t)
	g.Service.leaseGrace = time.Millisecond
	g.lease(true, time.Hour, "a.example.com")
	b := g.loadBox("b1")
	b.Lock()
	h.pass(time.Hour)
	g.endDue(t.Context())
	for end := time.Now().Add(time.Minute); g.kernel.Suspended.Load() != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the box still has its network")
		}
	}
	b.Unlock()
	g.endingLeases.Wait()
	if g.kernel.Suspended.Load() != 0 || g.allows("a.example.com") || len(b.Leases) != 0 || g.isClosed("b1") {
		t.Errorf("suspended %d times; leases %v, closed %t", g.kernel.Suspended.Load(), b.Leases, g.isClosed("b1"))
	}
	g.lease(false, time.Hour, "b.example.com")
	b.Lock()
	h.pass(time.Hour)
	if g.overstays(b) {
		t.Error("a box is taken off the network for the end of a denial")
	}
	b.Unlock()
	g.endDueLeases()
	g.Service.leaseGrace = time.Hour
	g.lease(true, time.Hour, "a.example.com")
	h.pass(time.Hour)
	g.endDueLeases()
	if g.kernel.Suspended.Load() != 0 || g.allows("a.example.com") {
		t.Error("a box whose lock is free is suspended, or its lease goes on")
	}
}

// TestALeaseEndsAlthoughTheKernelRefuses: a box is taken off the network although that fails at first, and is closed if its network
// cannot be restored.
func TestALeaseEndsAlthoughTheKernelRefuses(t *testing.T) {
	t.Parallel()
	g, h := newLeasing(t)
	g.Service.leaseGrace = time.Millisecond
	g.lease(true, time.Hour, "a.example.com")
	b := g.loadBox("b1")
	b.Lock()
	h.pass(time.Hour)
	g.kernel.Refused.Store(3)
	g.endDue(t.Context())
	for end := time.Now().Add(time.Minute); g.kernel.Suspended.Load() != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the box still has its network")
		}
	}
	g.kernel.Refused.Store(1)
	b.Unlock()
	g.endingLeases.Wait()
	if !g.isClosed("b1") || b.Problem != closedProblem {
		t.Errorf("a box whose network cannot be restored: closed %t, %q", g.isClosed("b1"), b.Problem)
	}
}

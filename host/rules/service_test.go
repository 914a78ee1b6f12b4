package rules

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/audit/trail"
	"boxgate/config"
	"boxgate/firewall"
	"boxgate/host/enforce"
	"boxgate/host/enforce/enforcetest"
	"boxgate/host/lease"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/rule/header"
	"boxgate/store"
	"boxgate/store/history"
)

var errFake = errors.New("fake failure")

// gateway is a Service over a real store and a kernel controlled by the test.
type gateway struct {
	t   *testing.T
	dir string
	db  *store.DB
	*Service
	kernel *enforcetest.Kernel
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	return openGateway(t, filepath.Join(t.TempDir(), "state"))
}

// openGateway starts a gateway over a state directory.
func openGateway(t *testing.T, dir string) *gateway {
	t.Helper()
	return openGatewayAt(t, dir, nil)
}

// openGatewayAt is openGateway with a clock for leases.
func openGatewayAt(t *testing.T, dir string, clock func() lease.Now) *gateway {
	t.Helper()
	db, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	audited, err := trail.Open(t.TempDir(), trail.Options{Size: 1 << 20}, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = audited.Close() })
	g := &gateway{t: t, dir: dir, db: db, kernel: &enforcetest.Kernel{}}
	net := &enforce.Enforcer{Kernel: g.kernel, Proxy: enforcetest.Proxy{}, Boxes: &enforce.Registry{}}
	g.Service = &Service{log: zap.NewNop(), store: db.Rules, records: db.Boxes, keys: db.Keys, boxes: &state.Table{}, shared: &Shared{protected: name.NewProtected(nil, nil), clock: clock}, net: net, trail: audited, replaying: make(chan struct{}, 1)}
	if _, err := db.Rules.DropStaged(); err != nil {
		t.Fatal(err)
	}
	if err := g.loadGlobal(); err != nil {
		t.Fatal(err)
	}
	records, err := db.Boxes.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		g.recover(r)
	}
	return g
}

// recover connects a stored box.
func (g *gateway) recover(r store.Box) {
	g.t.Helper()
	p, err := g.store.Policy(r.ID)
	p.Leases = g.shared.RebaseLeases(p.Leases)
	headers, errHeaders := g.store.Headers(r.ID)
	last, errLast := g.shared.LastVersion(g.store, r.ID, p.Leases)
	b := state.NewBox(r, p, headers, api.Hosted{}, last)
	c, errCompile := g.shared.inputsOf(b).compile()
	if err := errors.Join(err, errHeaders, errLast, errCompile); err != nil {
		g.t.Fatal(err)
	}
	g.boxes.Add(b)
	if err := g.net.Connect(g.t.Context(), &b.Box, enforce.Interface{}, c); err != nil {
		g.t.Fatal(err)
	}
}

// addBox adds a box that denies everything.
func (g *gateway) addBox(id policy.BoxID) {
	g.t.Helper()
	r, err := g.db.Boxes.Allocate(store.Box{ID: id, State: "idle", CreatedAt: time.Unix(int64(len(g.boxes.All())), 0), PlaceholderKey: store.NewKey()},
		store.Pools{V4: netip.MustParsePrefix("10.200.0.0/24"), V6: netip.MustParsePrefix("fd42::/64"), Reserved: 3})
	if err := errors.Join(err, g.store.StagePolicy(id, store.Policy{Spec: denyAll, Version: 1}, history.Origin{}), g.store.CommitPolicy(id)); err != nil {
		g.t.Fatal(err)
	}
	g.recover(r)
}

var (
	denyAll  = policy.Spec{Mode: policy.ModeDenyAll}
	allowAll = policy.Spec{Mode: policy.ModeAllowAll}
)

// rule returns a header rule identified by its value.
func rule(t *testing.T, value string) []policy.HeaderRule {
	t.Helper()
	rules, err := policy.ParseHeaders(map[string]map[string]string{"api.example.com": {"X-Key": value}})
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func valueOf(rules []policy.HeaderRule) string {
	if len(rules) == 0 {
		return ""
	}
	return header.Of(rules[0].Effects)[0].Literal.Reveal()
}

// seen is the state of one box as seen from the API, the applied policy, and requests to servers.
type seen struct {
	mode    policy.Mode // from the API
	open    bool        // of the applied policy
	closed  bool        // no policy
	own     string      // from the API
	global  string      // from the API
	applied string      // the header value that requests get
}

func (g *gateway) state(id policy.BoxID) seen {
	g.t.Helper()
	b, err := g.boxes.Find(id)
	if err != nil {
		g.t.Fatal(err)
	}
	p, err := g.Policy(g.t.Context(), id)
	own, errOwn := g.Headers(g.t.Context(), id)
	all, errAll := g.GlobalHeaders(g.t.Context())
	if err := errors.Join(err, errOwn, errAll); err != nil {
		g.t.Fatal(err)
	}
	host, err := name.Parse("api.example.com")
	if err != nil {
		g.t.Fatal(err)
	}
	s := seen{mode: p.Spec.Mode, own: valueOf(own.Rules), global: valueOf(all.Rules), closed: b.Policy.Load() == nil}
	if c := b.Policy.Load(); c != nil {
		s.open = c.Kernel().DefaultAllow
		if r, refused := c.HeaderRule(policy.Request{Name: host, Port: 443}); refused.Reason == "" && r.Applies() {
			s.applied = valueOf([]policy.HeaderRule{r})
		}
	}
	return s
}

// copyOf returns a copy of the state directory, as left by a gateway that dies now.
func (g *gateway) copyOf() string {
	g.t.Helper()
	dir := g.t.TempDir()
	err := os.Chmod(dir, 0o700)
	for _, name := range []string{"boxgate.db", "secret.key"} {
		data, errRead := os.ReadFile(filepath.Join(g.dir, name))
		err = errors.Join(err, errRead, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	if err != nil {
		g.t.Fatal(err)
	}
	return dir
}

// changes returns the changes made by change.Apply, each with the resulting state of box b1.
func changes(t *testing.T) map[string]struct {
	make func(*gateway) error
	want seen
} {
	t.Helper()
	return map[string]struct {
		make func(*gateway) error
		want seen
	}{
		"policy": {
			func(g *gateway) error {
				_, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: allowAll}, nil)
				return err
			},
			seen{mode: policy.ModeAllowAll, open: true},
		},
		"headers": {
			func(g *gateway) error { _, err := g.SetHeaders(t.Context(), "b1", rule(t, "own"), nil); return err },
			seen{mode: policy.ModeDenyAll, own: "own", applied: "own"},
		},
		"global headers": {
			func(g *gateway) error { _, err := g.SetGlobalHeaders(t.Context(), rule(t, "global"), nil); return err },
			seen{mode: policy.ModeDenyAll, global: "global", applied: "global"},
		},
		"policy and headers": {
			func(g *gateway) error {
				_, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: allowAll, Headers: &api.HeaderChange{Rules: rule(t, "own")}}, nil)
				return err
			},
			seen{mode: policy.ModeAllowAll, own: "own", applied: "own", open: true},
		},
	}
}

// The state before each change: everything is denied.
var before = seen{mode: policy.ModeDenyAll}

// A gateway that dies while a change is being applied starts with the previously committed state; one that dies after the
// response, with the change.
func TestAStartPutsTheCommittedStateInForce(t *testing.T) {
	t.Parallel()
	for name, c := range changes(t) {
		g := newGateway(t)
		g.addBox("b1")
		var died string
		g.kernel.Before = func(policy.BoxID, policy.KernelPlan) error { died = g.copyOf(); return nil }
		if err := c.make(g); err != nil {
			t.Fatal(name, err)
		}
		if got := g.state("b1"); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if died == "" {
			t.Fatalf("%s: the kernel was not called", name)
		}
		if got := openGateway(t, died).state("b1"); got != before {
			t.Errorf("%s: after a death on the way: %+v, want %+v", name, got, before)
		}
		if got := openGateway(t, g.copyOf()).state("b1"); got != c.want {
			t.Errorf("%s: after the answer: %+v, want %+v", name, got, c.want)
		}
	}
}

// A change that one box rejects leaves no trace: not in the applied policies, the API or the store. It can be repeated.
func TestAChangeThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range changes(t) {
		for _, panics := range []bool{false, true} {
			g := newGateway(t)
			g.addBox("b1")
			g.addBox("b2")
			failing := policy.BoxID("b1")
			if name == "global headers" {
				failing = "b2" // b1 has already taken it
			}
			failed := false
			g.kernel.Before = func(id policy.BoxID, _ policy.KernelPlan) error {
				if id != failing || failed {
					return nil
				}
				failed = true
				if panics {
					panic("fake")
				}
				return errFake
			}
			if err := c.make(g); err == nil || !failed {
				t.Errorf("%s panics=%v: the change succeeded", name, panics)
			}
			for _, id := range []policy.BoxID{"b1", "b2"} {
				if got := g.state(id); got != before {
					t.Errorf("%s panics=%v: %s has %+v", name, panics, id, got)
				}
			}
			g.nothingStaged(name)
			if err := c.make(g); err != nil {
				t.Errorf("%s panics=%v: again: %v", name, panics, err)
			}
			if got := g.state("b1"); got != c.want {
				t.Errorf("%s panics=%v: again: %+v, want %+v", name, panics, got, c.want)
			}
		}
	}
}

func (g *gateway) nothingStaged(what string) {
	g.t.Helper()
	staged, err := g.store.Staged()
	headers, errHeaders := g.store.StagedHeaders()
	if err := errors.Join(err, errHeaders); err != nil || len(staged)+len(headers) > 0 {
		g.t.Errorf("%s: staged: %v %v %v", what, staged, len(headers), err)
	}
}

// A box whose kernel rejects both the new rules and the old ones is closed. The others keep the old ones.
func TestABoxWithoutAWayBackIsClosedAlone(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	g.addBox("b2")
	g.kernel.Before = func(id policy.BoxID, _ policy.KernelPlan) error {
		if id == "b2" {
			return errFake
		}
		return nil
	}
	if _, err := g.SetGlobalHeaders(t.Context(), rule(t, "global"), nil); err == nil {
		t.Error("the change succeeded")
	}
	if got := g.state("b1"); got != before {
		t.Errorf("b1 has %+v", got)
	}
	b, err := g.boxes.Find("b2")
	if err != nil || !g.state("b2").closed || b.View().Status != api.StatusError {
		t.Errorf("b2 is %+v: %+v %v", b.View(), g.state("b2"), err)
	}
}

// With a store that cannot be written, a change that cannot be staged is not applied, and a box whose change cannot be
// committed is closed, because it is unknown which state the next start would apply.
func TestAChangeWithoutAStore(t *testing.T) {
	t.Parallel()
	for name, c := range changes(t) {
		g := newGateway(t)
		g.addBox("b1")
		applied := 0
		g.kernel.Before = func(policy.BoxID, policy.KernelPlan) error {
			if applied++; applied == 1 {
				_ = g.db.Close()
			}
			return nil
		}
		if err := c.make(g); !errors.Is(err, api.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if got := g.state("b1"); !got.closed {
			t.Errorf("%s: the box is still open: %+v", name, got)
		}
		if got := openGateway(t, g.dir).state("b1"); got != before {
			t.Errorf("%s: after a start: %+v", name, got)
		}

		g = newGateway(t)
		g.addBox("b1")
		if err := g.db.Close(); err != nil {
			t.Fatal(err)
		}
		g.kernel.Before = func(policy.BoxID, policy.KernelPlan) error {
			t.Errorf("%s: applied without being staged", name)
			return nil
		}
		if err := c.make(g); !errors.Is(err, api.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if got := g.state("b1"); got != before {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// New addresses of the host stay protected in every box that took them even if another box failed, and are retried.
func TestProtectedRangesAreNotRolledBack(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	g.addBox("b2")
	for _, id := range []policy.BoxID{"b1", "b2"} {
		if _, err := g.SetPolicy(t.Context(), id, api.PolicyChange{Spec: allowAll}, nil); err != nil {
			t.Fatal(err)
		}
	}
	fail := true
	g.kernel.Before = func(id policy.BoxID, _ policy.KernelPlan) error {
		if id == "b2" && fail {
			fail = false
			return errFake
		}
		return nil
	}
	pool := netip.MustParsePrefix("8.8.8.0/24")
	p := &Protection{log: zap.NewNop(), list: firewall.HostAddresses, addrs: config.Addresses{PoolV4: pool, PoolV6: netip.MustParsePrefix("2001:4860::/64")}, policies: g.Service}
	reaches := func(id policy.BoxID) bool {
		b, err := g.boxes.Find(id)
		if err != nil {
			t.Fatal(err)
		}
		return b.Policy.Load().Decide(policy.Request{
			Stage: policy.StageKernel, Box: id, Addr: pool.Addr().Next(), Port: 4444, Protocol: policy.UDP,
		}).Allowed()
	}
	if !reaches("b1") || !reaches("b2") {
		t.Fatal("the address is protected already")
	}
	if err := p.Update(t.Context()); err == nil || len(p.own) > 0 {
		t.Errorf("the change succeeded: %v", err)
	}
	if reaches("b1") {
		t.Error("b1 reaches a protected address because b2 does")
	}
	if err := p.Update(t.Context()); err != nil {
		t.Error(err)
	}
	if reaches("b1") || reaches("b2") {
		t.Error("the address is not protected")
	}
}

// An address that the host loses and regains is protected again, also in boxes that had opened it while another box
// failed.
func TestAnAddressThatComesBackIsProtected(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	g.addBox("b2")
	for _, id := range []policy.BoxID{"b1", "b2"} {
		if _, err := g.SetPolicy(t.Context(), id, api.PolicyChange{Spec: allowAll}, nil); err != nil {
			t.Fatal(err)
		}
	}
	held, other := netip.MustParsePrefix("8.8.8.0/24"), netip.MustParsePrefix("9.9.9.0/24")
	p := &Protection{log: zap.NewNop(), list: firewall.HostAddresses, addrs: config.Addresses{PoolV4: held, PoolV6: netip.MustParsePrefix("2001:4860::/64")}, policies: g.Service}
	if err := p.Update(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.kernel.Before = func(id policy.BoxID, plan policy.KernelPlan) error {
		if id == "b2" && !slices.Contains(plan.Protected, held) {
			return errFake
		}
		return nil
	}
	p.addrs.PoolV4 = other
	if err := p.Update(t.Context()); err == nil {
		t.Error("the change succeeded")
	}
	p.addrs.PoolV4 = held
	if err := p.Update(t.Context()); err != nil {
		t.Error(err)
	}
	for _, id := range []policy.BoxID{"b1", "b2"} {
		b, err := g.boxes.Find(id)
		if err != nil {
			t.Fatal(err)
		}
		at := policy.Request{Stage: policy.StageKernel, Box: id, Addr: held.Addr().Next(), Port: 4444, Protocol: policy.UDP}
		if b.Policy.Load().Decide(at).Allowed() {
			t.Errorf("%s reaches an address of the host", id)
		}
	}
}

// In a change of all boxes, each box has its own time limit, so that the last ones of many are not too late.
func TestEachBoxHasItsOwnTime(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	g.addBox("b2")
	var deadlines []time.Time
	g.kernel.Before = func(policy.BoxID, policy.KernelPlan) error {
		time.Sleep(time.Millisecond)
		return nil
	}
	g.kernel.Seen = func(ctx context.Context) {
		at, _ := ctx.Deadline()
		deadlines = append(deadlines, at)
	}
	if _, err := g.SetGlobalHeaders(t.Context(), rule(t, "global"), nil); err != nil {
		t.Fatal(err)
	}
	if len(deadlines) != 2 || !deadlines[1].After(deadlines[0]) {
		t.Errorf("%v", deadlines)
	}
}

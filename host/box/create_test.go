package box

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/audit/trail"
	"boxgate/config"
	"boxgate/host/enforce"
	"boxgate/host/enforce/enforcetest"
	"boxgate/host/keys"
	"boxgate/host/rules"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/policy/document"
	quotas "boxgate/quota"
	"boxgate/store"
	"boxgate/store/history"
)

var (
	denied  = policy.Spec{Mode: policy.ModeDenyAll}
	allowed = policy.Spec{Mode: policy.ModeAllowAll}
)

// rig is a set of boxes with their rules, over a real store and a kernel without failures.
type rig struct {
	*rules.Service
	store    *store.DB
	boxes    *state.Table
	shared   *rules.Shared
	holdings *keys.Holdings
}

// provisioner returns a Provisioner that stores new boxes.
func (g *rig) provisioner() *Provisioner {
	return &Provisioner{log: zap.NewNop(), records: g.store.Boxes, rules: g.store.Rules, installation: g.store.Installation, shared: g.shared}
}

// boxesThatFollow returns three boxes, of which b1 and b2 follow the named policy "web", which denies everything.
func boxesThatFollow(t *testing.T) *rig {
	t.Helper()
	db, err := store.Open(store.Options{Dir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	audited, err := trail.Open(t.TempDir(), trail.Options{Size: 1 << 20}, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = audited.Close() })
	net := &enforce.Enforcer{Kernel: &enforcetest.Kernel{}, Proxy: enforcetest.Proxy{}, Boxes: &enforce.Registry{}}
	g := &rig{store: db, boxes: &state.Table{}, shared: rules.NewShared(nil, nil, nil)}
	g.Service, err = rules.New(rules.Config{Log: zap.NewNop(), Store: db.Rules, Records: db.Boxes, Keys: db.Keys, Boxes: g.boxes, Shared: g.shared, Net: net, Trail: audited})
	if err != nil {
		t.Fatal(err)
	}
	g.holdings, err = keys.NewHoldings(keys.HoldingsConfig{
		Log: zap.NewNop(), Book: quotas.New(quotas.Config{}), Boxes: g.boxes, Keys: db.Keys, Snapshots: db.Snapshots,
		Layer: func(string) (int64, error) { return 0, nil }, Space: func(int64) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.SetNamedPolicy(t.Context(), "web", denied, nil); err != nil {
		t.Fatal(err)
	}
	for id, named := range map[policy.BoxID]string{"b1": "web", "b2": "web", "b3": ""} {
		r, err := db.Boxes.Allocate(store.Box{ID: id, State: "idle", PlaceholderKey: store.NewKey()},
			store.Pools{V4: netip.MustParsePrefix("10.200.0.0/24"), V6: netip.MustParsePrefix("fd42::/64"), Reserved: 3})
		p := store.Policy{Spec: denied, Version: 1, Named: named}
		if err := errors.Join(err, db.Rules.StagePolicy(id, p, history.Origin{}), db.Rules.CommitPolicy(id)); err != nil {
			t.Fatal(err)
		}
		b := state.NewBox(r, p, store.Headers{}, api.Hosted{}, 0)
		c, err := g.shared.Compile(b)
		if err != nil {
			t.Fatal(err)
		}
		g.boxes.Add(b)
		if err := net.Connect(t.Context(), &b.Box, enforce.Interface{}, c); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// Boxes that are created, or start or stop following a policy, while it changes always have its current version.
func TestNamedPolicyAmongOtherChanges(t *testing.T) {
	t.Parallel()
	g := boxesThatFollow(t)
	l := &Service{Provisioner: g.provisioner(), boxes: g.boxes, holdings: g.holdings}
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
		_, err := g.SetNamedPolicy(t.Context(), "web", []policy.Spec{allowed, denied}[i%2], nil)
		return err
	})
	try(func(i int) error {
		_, err := g.SetPolicy(t.Context(), "b1", []api.PolicyChange{{Spec: denied}, {Named: "web"}}[i%2], nil)
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
		return (&provisioning{Provisioner: l.Provisioner, box: b}).storeInitial(t.Context())
	})
	rule, err := policy.ParseHeaders(map[string]map[string]string{"api.example.com": {"X-Key": "v"}})
	if err != nil {
		t.Fatal(err)
	}
	try(func(int) error { _, err := g.SetGlobalHeaders(t.Context(), rule, nil); return err })
	all.Wait()
	named, err := g.NamedPolicies(t.Context())
	if err != nil || len(named) != 1 {
		t.Fatal(named, err)
	}
	want := named[0].Spec.Mode
	if n := len(g.boxes.All()); n != 18 {
		t.Errorf("there are %d boxes", n)
	}
	for _, b := range g.boxes.All() {
		stored, err := g.store.Rules.Policy(b.ID)
		if s := b.Applied.Load(); err != nil || s.Named != stored.Named || s.Version != stored.Version || s.Named == "web" && (s.Spec.Mode != want || stored.Spec.Mode != want) {
			t.Errorf("%s: %+v, stored %+v, %v; the named policy has %s", b.ID, s, stored, err, want)
		}
	}
}

// A new box starts with the version of its named policy from which on changes reach the box.
func TestNewBoxFollowsANamedPolicy(t *testing.T) {
	t.Parallel()
	g := boxesThatFollow(t)
	l := &Service{Provisioner: g.provisioner(), boxes: g.boxes, holdings: g.holdings}
	if spec, err := l.policyOfNew(policy.Spec{}, "web", nil); err != nil || spec.Mode != policy.ModeDenyAll {
		t.Errorf("%+v %v", spec, err)
	}
	_, err := l.policyOfNew(policy.Spec{}, "missing", nil)
	if wrong := (*document.InvalidError)(nil); !errors.As(err, &wrong) || wrong.Problems[0].Pointer != "/network_policy/named" {
		t.Error(err)
	}
	made := state.NewBox(store.Box{ID: "b4"}, store.Policy{Spec: denied, Version: 1, Named: "web"}, store.Headers{}, api.Hosted{}, 0)
	if p := made.StoredPolicy(); p.Named != "web" || made.View().Policy.Named != "web" {
		t.Errorf("%+v", p)
	}
}

// A box that is busy, even for minutes, delays only changes of the named policy that it follows or is about to follow. A
// change is not starved by boxes that are busy in turn.
func TestNamedPolicyWaitsForBusyBoxes(t *testing.T) {
	t.Parallel()
	g := boxesThatFollow(t)
	l := &Service{Provisioner: g.provisioner(), boxes: g.boxes, holdings: g.holdings}
	l.addrs = config.Addresses{PoolV4: netip.MustParsePrefix("10.200.0.0/24"), PoolV6: netip.MustParsePrefix("fd42::/64")}
	for what, change := range map[string]func(context.Context) error{
		"a change of the policy": func(ctx context.Context) error {
			_, err := g.SetNamedPolicy(ctx, "web", allowed, nil)
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
				if _, err := g.SetPolicy(t.Context(), "b3", api.PolicyChange{Spec: denied}, nil); err != nil {
					t.Error(err)
				}
				b, err := l.admit(t.Context(), api.CreateRequest{Policy: denied}, nil, origin{})
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
			t.Errorf("%s delays changes of other boxes", what)
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
		if _, err := g.SetNamedPolicy(t.Context(), "web", []policy.Spec{allowed, denied}[i%2], nil); err != nil {
			t.Error(err)
		}
		if _, err := g.SetPolicy(t.Context(), "b2", api.PolicyChange{Named: "web"}, nil); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	busy.Wait()
}

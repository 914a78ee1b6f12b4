package host

import (
	"net/netip"
	"testing"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/config"
	"boxgate/host/handover"
	"boxgate/host/handover/handovertest"
	"boxgate/host/listen"
	"boxgate/host/rules"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/store"
)

// A box that has used up its quota also loses its visitors in the predecessor, once that is relieved.
func TestAQuotaCutsVisitorsWhenItIsRelieved(t *testing.T) {
	t.Parallel()
	table := &state.Table{}
	for _, id := range []policy.BoxID{"box1", "box2"} {
		b := state.NewBox(store.Box{ID: id}, store.Policy{}, store.Headers{}, api.Hosted{}, 0)
		b.Spent.Store(id == "box1")
		compiled, err := policy.Compile(policy.Spec{Mode: policy.ModeDenyAll}, policy.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b.Policy.Store(compiled)
		table.Add(b)
	}
	before, other := handovertest.Unrelieved(t, handover.Hello{}, nil)
	h := &Host{parts: &parts{log: zap.NewNop(), boxes: table, listeners: &listen.Sockets{}, before: before}, services: services{protection: &rules.Protection{}}}
	h.relieve()
	if !other.Has(handover.URLs, "box1", "") || !other.Has(handover.Cut, "box1", "") || other.Has(handover.URLs, "box2", "") || other.Has(handover.Cut, "box2", "") {
		t.Errorf("messages after Relieve: %v", other.Received())
	}
}

// TestOrdersAreWhole: the predecessor gets a policy only if its document is all of it. A denial for a time that wins over more specific
// allowed entries is no part of it, so that connections are cut instead.
func TestOrdersAreWhole(t *testing.T) {
	t.Parallel()
	before, _ := handovertest.New(t)
	defer before.PolicyAlone("box1")()
	spec := policy.Spec{Mode: policy.ModeCustom, Precedence: policy.PrecedenceSpecific, AllowedDomains: []string{"a.test", "b.test"}}
	for _, c := range []struct {
		spec policy.Spec
		want handover.Kind
	}{{spec, handover.Policy}, {spec.Overruled("a.test"), handover.Cut}} {
		compiled, err := policy.Compile(c.spec, policy.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b := state.NewBox(store.Box{ID: "box1"}, store.Policy{}, store.Headers{}, api.Hosted{}, 0)
		b.Policy.Store(compiled)
		table := &state.Table{}
		table.Add(b)
		if got := (withPredecessor{nil, before, table}).order("box1"); got.Kind != c.want {
			t.Errorf("%+v: %+v", c.spec, got)
		}
	}
}

// Newly protected ranges cut all connections of the predecessor. Ranges that are no longer protected do not.
func TestNewAddressesCutWhatDrains(t *testing.T) {
	t.Parallel()
	cfg, one, two := config.Config{}, netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")
	for _, c := range []struct {
		was, is []netip.Prefix
		cut     bool
	}{
		{[]netip.Prefix{one}, []netip.Prefix{one}, false}, {[]netip.Prefix{one, two}, []netip.Prefix{one}, false},
		{[]netip.Prefix{one}, []netip.Prefix{one, two}, true}, {nil, []netip.Prefix{one}, true},
	} {
		before, other := handovertest.Unrelieved(t, handover.Hello{Policies: policiesOf(cfg)}, c.was)
		if err := relieve(before, nil, cfg, c.is, zap.NewNop()); err != nil {
			t.Fatal(err)
		}
		if got := other.Has(handover.CutAll, "", ""); got != c.cut {
			t.Errorf("%v, then %v: cut %v", c.was, c.is, got)
		}
	}
}

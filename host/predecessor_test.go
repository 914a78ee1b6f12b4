package host

import (
	"net/netip"
	"testing"

	"go.uber.org/zap"

	"boxgate/config"
	"boxgate/host/handover"
	"boxgate/host/handover/handovertest"
	"boxgate/policy"
)

// visitorsOf notes whose visitors were cut.
type visitorsOf []policy.BoxID

func (v *visitorsOf) CloseBox(id policy.BoxID) { *v = append(*v, id) }

// A box that has used up its quota loses its visitors in the predecessor, too: at once, and when that is relieved.
func TestAQuotaCutsVisitorsWhereTheyDrain(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("box1")
	g.addBox("box2")
	before, other := handovertest.New(t)
	q := &quota{before: before, log: zap.NewNop(), boxes: g.boxes, policies: g.policies, visitors: &visitorsOf{}}
	b, err := g.boxes.Find("box1")
	if err != nil {
		t.Fatal(err)
	}
	q.set(t.Context(), b, true)
	if !other.Has(handover.URLs, "box1", "") {
		t.Errorf("told: %v", other.Told())
	}
	before, other = handovertest.Unrelieved(t, handover.Hello{}, nil)
	h := &Host{parts: &parts{log: zap.NewNop(), boxes: g.boxes, listeners: &Listeners{}}, before: before, protection: &protection{}}
	h.relieve()
	if !other.Has(handover.URLs, "box1", "") || !other.Has(handover.Cut, "box1", "") || other.Has(handover.URLs, "box2", "") || other.Has(handover.Cut, "box2", "") {
		t.Errorf("told when it was relieved: %v", other.Told())
	}
}

// What is protected here and was not in the predecessor cuts all that it has; what is protected no longer does not.
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

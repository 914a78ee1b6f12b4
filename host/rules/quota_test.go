package rules

import (
	"context"
	"sync"
	"testing"

	"go.uber.org/zap"

	"boxgate/host/handover"
	"boxgate/host/handover/handovertest"
	"boxgate/host/meter"
	"boxgate/policy"
	"boxgate/store"
)

// counters is a kernel with byte counters set by the test.
type counters struct {
	mu sync.Mutex
	of uint64
}

func (c *counters) ReadLinks(boxes []policy.BoxID) (map[policy.BoxID]meter.Reading, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[policy.BoxID]meter.Reading{}
	for _, id := range boxes {
		all[id] = meter.Reading{LinkLife: "1", In: c.of / 2, Out: c.of - c.of/2}
	}
	return all, nil
}

func (c *counters) Read(boxes []policy.BoxID) (map[policy.BoxID]meter.Reading, error) {
	return c.ReadLinks(boxes)
}

func (c *counters) Disk(context.Context, policy.BoxID) (meter.Disk, error) { return meter.Disk{}, nil }

// TestABoxIsHeldToAQuotaOfItsOwn: a box is cut off when it has used up its own quota, whatever the common one is, and
// reconnected when its own is raised or removed. A box without its own quota follows the common one.
func TestABoxIsHeldToAQuotaOfItsOwn(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, c := range map[string]struct {
		all, own, used int64
		spent, beside  bool
	}{
		"below its own":             {policy.Unlimited, 4 * mib, 4*mib - 1, false, false},
		"its own is used up":        {policy.Unlimited, 4 * mib, 4 * mib, true, false},
		"less than that of all":     {8 * mib, 4 * mib, 5 * mib, true, false},
		"more than that of all":     {4 * mib, 8 * mib, 5 * mib, false, true},
		"none, where all have one":  {4 * mib, policy.Unlimited, 5 * mib, false, true},
		"that of all, which is one": {4 * mib, 0, 4 * mib, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t)
			g.addBox("box1")
			g.addBox("box2")
			g.boxes.Limits[policy.LimitQuota] = c.all
			kernel := &counters{of: uint64(c.used)}
			q := &Quota{
				log: zap.NewNop(), boxes: g.boxes, policies: g.Service, visitors: noVisitors{},
			}
			var err error
			if q.meter, err = meter.Open(meter.Config{Boxes: g.boxes.IDs, Kernel: kernel, Store: g.db.Usages, Log: zap.NewNop()}); err != nil {
				t.Fatal(err)
			}
			q.before, _ = handovertest.New(t)
			b, err := g.boxes.Find("box1")
			if err != nil {
				t.Fatal(err)
			}
			beside, err := g.boxes.Find("box2")
			if err != nil {
				t.Fatal(err)
			}
			look := func() {
				var changes sync.WaitGroup
				q.checkBoxes(t.Context(), &changes)
				changes.Wait()
			}
			own := policy.Limits{policy.LimitQuota: c.own}
			b.Limits.Store(own)
			look()
			if b.Spent.Load() != c.spent || beside.Spent.Load() != c.beside {
				t.Errorf("cut off: %t, and the other box: %t", b.Spent.Load(), beside.Spent.Load())
			}
			// The same at the start of a gateway, from the stored state.
			record := store.Box{ID: "box1", Limits: store.BoxLimits{Operator: own}}
			if got := q.SpentOf([]store.Box{record, {ID: "box2"}}); got["box1"] != c.spent || got["box2"] != c.beside {
				t.Errorf("at a start: %v", got)
			}
			b.Limits.Store(policy.Limits{policy.LimitQuota: c.used + mib})
			look()
			if b.Spent.Load() {
				t.Error("still cut off with a larger quota")
			}
		})
	}
}

// noVisitors is an ingress without visitors.
type noVisitors struct{}

func (noVisitors) CloseBox(policy.BoxID) {}

// visitorsOf records the boxes whose visitors are cut off.
type visitorsOf struct{ closed []policy.BoxID }

func (v *visitorsOf) CloseBox(id policy.BoxID) { v.closed = append(v.closed, id) }

// A box that has used up its quota also loses its visitors in the predecessor.
func TestAQuotaCutsVisitorsWhereTheyDrain(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("box1")
	before, other := handovertest.New(t)
	q := &Quota{before: before, log: zap.NewNop(), boxes: g.boxes, policies: g.Service, visitors: noVisitors{}}
	b, err := g.boxes.Find("box1")
	if err != nil {
		t.Fatal(err)
	}
	q.setSpent(t.Context(), b, true)
	if !other.Has(handover.URLs, "box1", "") {
		t.Errorf("messages: %v", other.Received())
	}
}

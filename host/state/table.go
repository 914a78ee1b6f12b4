package state

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"boxgate/api"
	"boxgate/llm"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Table holds the boxes of this gateway. The zero value is empty. Safe for concurrent use. A box's lock is taken before
// the table's.
type Table struct {
	// Limits are the configured limits of each box.
	Limits policy.Limits
	// ModelLimit is the configured limit of models of each box.
	ModelLimit llm.Limit

	// HandedOver is set once another process owns the boxes' state.
	HandedOver atomic.Bool

	mu   sync.Mutex
	byID map[policy.BoxID]*Box
}

// Add adds a box.
func (t *Table) Add(b *Box) {
	b.Limits.Store(t.EffectiveLimits(api.BoxLimits(b.Record.Limits)))
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = map[policy.BoxID]*Box{}
	}
	t.byID[b.ID] = b
}

// EffectiveLimits returns the limits of a box that differ from the configured ones.
func (t *Table) EffectiveLimits(l api.BoxLimits) policy.Limits {
	return l.Effective(t.Limits).Beside(t.Limits)
}

// HostLimits implements the Hosts of [boxgate/api/boxes] and [boxgate/api/settings].
func (t *Table) HostLimits() policy.Limits { return t.Limits }

// HostModelLimit implements the Boxes of [boxgate/api/settings].
func (t *Table) HostModelLimit() llm.Limit { return t.ModelLimit }

// Remove removes a box.
func (t *Table) Remove(id policy.BoxID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, id)
}

// Find returns a box by its ID.
func (t *Table) Find(id policy.BoxID) (*Box, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b, ok := t.byID[id]; ok {
		return b, nil
	}
	return nil, api.ErrNotFound
}

// NameOf returns the name of a box, and whether the box exists.
func (t *Table) NameOf(id policy.BoxID) (name string, known bool) {
	b, err := t.Find(id)
	if err != nil {
		return "", false
	}
	return b.Name, true
}

// Named returns the ID and the IPv4 address of the connected box with a name, or with an ID.
func (t *Table) Named(nameOrID string) (policy.BoxID, netip.Addr, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.byID[policy.BoxID(nameOrID)]
	for _, other := range t.byID {
		if b == nil && nameOrID != "" && other.Name == nameOrID {
			b = other
		}
	}
	if b == nil || !b.Connected() {
		return "", netip.Addr{}, false
	}
	return b.ID, b.V4, true
}

// Has reports whether a box exists.
func (t *Table) Has(id policy.BoxID) bool {
	_, err := t.Find(id)
	return err == nil
}

// Lock returns a box by its ID, with its lock held.
func (t *Table) Lock(id policy.BoxID) (*Box, error) {
	b, err := t.Find(id)
	if err != nil {
		return nil, err
	}
	b.Lock()
	return t.Locked(b)
}

// Locked returns b, which the caller has just locked. If b must not be changed, Locked unlocks it and returns the reason.
func (t *Table) Locked(b *Box) (*Box, error) {
	if t.HandedOver.Load() {
		b.Unlock()
		return nil, ErrHandedOver
	}
	if err := b.Gone(); err != nil {
		b.Unlock()
		return nil, err
	}
	return b, nil
}

// ErrHandedOver refuses changes in a process that is being replaced.
var ErrHandedOver = api.Errorf(api.ErrUnavailable, "the gateway is being replaced; try again")

// IDs returns the IDs of all boxes.
func (t *Table) IDs() []policy.BoxID {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.byID))
}

// Unsorted returns all boxes in no particular order.
func (t *Table) Unsorted() []*Box {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.byID))
}

// All returns the boxes, oldest first.
func (t *Table) All() []*Box {
	out := t.Unsorted()
	slices.SortFunc(out, func(a, b *Box) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return out
}

// Explain returns the decision of a box's policy, for denials by the kernel, which do not name a rule.
func (t *Table) Explain(r policy.Request) policy.Decision {
	b, err := t.Find(r.Box)
	if err != nil {
		return policy.Decision{Reason: name.ReasonUnknownBox}
	}
	return b.Policy.Load().Decide(r)
}

// CountStates registers the metric of boxes by state.
func CountStates(metrics *prometheus.Registry, all *Table) error {
	var errs []error
	for _, s := range []api.Status{api.StatusCreating, api.StatusIdle, api.StatusRunning, api.StatusPaused, api.StatusError, api.StatusGone} {
		errs = append(errs, metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "boxgate_boxes", Help: "Boxes by their state.", ConstLabels: prometheus.Labels{"state": string(s)},
		}, func() float64 { return all.count(s) })))
	}
	return errors.Join(errs...)
}

// count returns the number of boxes in a state.
func (t *Table) count(s api.Status) (n float64) {
	for _, b := range t.All() {
		if b.View().Status == s {
			n++
		}
	}
	return n
}

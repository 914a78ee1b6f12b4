package host

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/policy/name"
)

// boxes are the boxes of this gateway. The zero value is empty. Safe for concurrent use; a box's own lock is taken before
// this one.
type boxes struct {
	// metered says what a box has used, read from the kernel if that is to be fresh; nil: nobody knows.
	metered func(id policy.BoxID, fresh bool) api.Usage

	// limits are those that the configuration gives each box.
	limits policy.Limits

	// lent is set once the boxes are another process's to change.
	lent atomic.Bool

	mu   sync.Mutex
	byID map[policy.BoxID]*box
}

func (t *boxes) add(b *box) {
	b.Limits.Store(t.own(api.BoxLimits(b.record.Limits)))
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = map[policy.BoxID]*box{}
	}
	t.byID[b.ID] = b
}

// own returns those limits of a box that are not those of the configuration.
func (t *boxes) own(l api.BoxLimits) policy.Limits { return l.Of(t.limits).Beside(t.limits) }

// HostLimits implements the Hosts of [boxgate/api/boxes] and [boxgate/api/settings].
func (t *boxes) HostLimits() policy.Limits { return t.limits }

func (t *boxes) remove(id policy.BoxID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, id)
}

// find returns a box by its ID.
func (t *boxes) find(id policy.BoxID) (*box, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b, ok := t.byID[id]; ok {
		return b, nil
	}
	return nil, api.ErrNotFound
}

// nameOf returns the name of a box, and whether there is such a box.
func (t *boxes) nameOf(id policy.BoxID) (name string, known bool) {
	b, err := t.find(id)
	if err != nil {
		return "", false
	}
	return b.name, true
}

// exist reports whether there is a box with the ID.
func (t *boxes) exist(id policy.BoxID) bool {
	_, err := t.find(id)
	return err == nil
}

// lock returns a box by its ID, with its lock held.
func (t *boxes) lock(id policy.BoxID) (*box, error) {
	b, err := t.find(id)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	return t.locked(b)
}

// locked returns a box whose lock the caller has just taken, or gives the lock back and returns why the box cannot be changed.
func (t *boxes) locked(b *box) (*box, error) {
	if t.lent.Load() {
		b.mu.Unlock()
		return nil, errLent
	}
	if err := b.gone(); err != nil {
		b.mu.Unlock()
		return nil, err
	}
	return b, nil
}

// errLent refuses changes in a process that is being replaced.
var errLent = api.Errorf(api.ErrUnavailable, "the gateway is being replaced; try again")

// ids are the IDs of all boxes.
func (t *boxes) ids() []policy.BoxID {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.byID))
}

// unsorted returns the boxes.
func (t *boxes) unsorted() []*box {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.byID))
}

// all returns the boxes, oldest first.
func (t *boxes) all() []*box {
	out := t.unsorted()
	slices.SortFunc(out, func(a, b *box) int { return a.createdAt.Compare(b.createdAt) })
	return out
}

// Box implements the Finder of [boxgate/api/rest].
func (t *boxes) Box(_ context.Context, idOrName string) (api.Box, error) {
	b, err := t.find(policy.BoxID(idOrName))
	if err != nil && idOrName != "" {
		for _, other := range t.all() {
			if other.name == idOrName {
				b, err = other, nil
			}
		}
	}
	if err != nil {
		return api.Box{}, api.Errorf(api.ErrNotFound, "there is no box %q", idOrName)
	}
	return t.withUsage(b.view(), true), nil
}

func (t *boxes) withUsage(v api.Box, fresh bool) api.Box {
	if t.metered != nil {
		v.Usage = t.metered(v.ID, fresh)
	}
	return v
}

// Boxes implements the Table of [boxgate/api/boxes].
func (t *boxes) Boxes(_ context.Context, f api.BoxFilter) ([]api.Box, error) {
	var views []api.Box
	for _, b := range t.all() {
		if v := b.view(); f.Label == "" || slices.Contains(v.Labels, f.Label) {
			views = append(views, t.withUsage(v, false))
		}
	}
	return views, nil
}

// explain says how the policy of the box would decide: for the kernel's refusals, which name no rule.
func (t *boxes) explain(r policy.Request) policy.Decision {
	b, err := t.find(r.Box)
	if err != nil {
		return policy.Decision{Reason: name.ReasonUnknownBox}
	}
	return b.Policy.Load().Decide(r)
}

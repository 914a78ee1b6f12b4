package budget

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"boxgate/llm"
	"boxgate/policy"
	"boxgate/store"
)

// Interval is the interval at which changed accounts are stored.
const Interval = time.Second

// idleAfter is when an account without requests gives its headroom back.
const idleAfter = time.Minute

// Run stores changed accounts every [Interval] until ctx is done, and then once more.
func (b *Book) Run(ctx context.Context) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for n := 1; ; n++ {
		over := false
		select {
		case <-ctx.Done():
			over = true
		case <-tick.C:
		}
		if err := b.Save(); err != nil && !errors.Is(err, errReleased) {
			b.cfg.Log.Error("the use of models could not be stored; retrying", zap.Error(err))
		}
		if over {
			return
		}
		if n%pruneEvery == 0 {
			b.prune()
		}
	}
}

// pruneEvery is the number of intervals between two calls of prune.
const pruneEvery = 60

// prune drops accounts of boxes that were deleted while they began a request.
func (b *Book) prune() {
	b.mu.Lock()
	keys := slices.Collect(maps.Keys(b.accounts))
	b.mu.Unlock()
	for _, key := range keys {
		id, ofBox := strings.CutPrefix(key, store.ModelAccountOfBox(""))
		if _, known := b.cfg.Scope(id); ofBox && !known {
			b.Forget(policy.BoxID(id))
		}
	}
}

// Save stores the accounts that changed.
func (b *Book) Save() error {
	b.saving.Lock()
	defer b.saving.Unlock()
	return b.saveLocked(true)
}

// cover returns once the store covers a reservation. Requests that wait at the same time share a write.
func (b *Book) cover(sequence uint64) error {
	b.saving.Lock()
	defer b.saving.Unlock()
	if b.saved >= sequence {
		return nil
	}
	return b.saveLocked(true)
}

// saveLocked stores the accounts that changed or that the store does not cover, and if ahead is set their headroom. The caller holds
// saving.
func (b *Book) saveLocked(ahead bool) error {
	b.mu.Lock()
	if b.released {
		b.mu.Unlock()
		return errReleased
	}
	records, sequence := b.changedLocked(ahead), b.sequence
	b.mu.Unlock()
	if len(records) == 0 {
		b.saved = sequence
		return nil
	}
	b.metrics.writes.Inc()
	if err := b.cfg.Store.Save(records); err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		for key := range records {
			if a := b.accounts[key]; a != nil {
				a.dirty = true
			}
		}
		return err
	}
	b.saved = sequence
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, r := range records {
		if a := b.accounts[key]; a != nil {
			a.stored = plus(r.Total, r.Ahead)
		}
	}
	return nil
}

// changedLocked returns the records to store, and marks their accounts as stored.
func (b *Book) changedLocked(ahead bool) map[string]store.ModelAccount {
	records := map[string]store.ModelAccount{}
	now := b.cfg.Now()
	for key, a := range b.accounts {
		room := a.headroom
		if !ahead || a.calls == 0 && now.Sub(a.used).Abs() > idleAfter {
			room = Amount{}
		}
		next := plus(a.reserved, room)
		if !a.dirty && a.covered() && a.record.Ahead == next {
			continue
		}
		a.record.Ahead, a.dirty = next, false
		if a.gone {
			continue
		}
		r := a.record
		a.stored = least(a.stored, plus(r.Total, r.Ahead)) // until it is written, the store may have either
		r.Models = maps.Clone(r.Models)
		records[key] = r
	}
	return records
}

// Release gives the store to another process, which charges what this one has reserved and its headroom. Running requests go on, and others
// may begin within the headroom; their costs are no longer added to the sums. Further calls have no effect.
func (b *Book) Release() error { return b.hand(true) }

// Close stores all accounts without headroom. What running requests have reserved is charged by the next process.
func (b *Book) Close() error { return b.hand(false) }

// hand stores all accounts, with headroom if ahead is set, and leaves the store to the next process.
func (b *Book) hand(ahead bool) error {
	b.saving.Lock()
	defer b.saving.Unlock()
	err := b.saveLocked(ahead)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released = true
	if errors.Is(err, errReleased) {
		return nil
	}
	return err
}

// Forget drops the account of a deleted box. Its use stays in the accounts of its API key and of all boxes.
func (b *Book) Forget(id policy.BoxID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := store.ModelAccountOfBox(id)
	if a := b.accounts[key]; a != nil {
		a.gone = true
		delete(b.accounts, key)
	}
}

// OfBox returns the use of models by a box, with the limits that apply to it.
func (b *Book) OfBox(id policy.BoxID) View {
	scope, known := b.cfg.Scope(string(id))
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.readLocked(store.ModelAccountOfBox(id))
	v := a.view()
	if known {
		v.Budgets = spending(a, "box", scope.Box)
	}
	return v
}

// OfKey returns the use of models by the boxes that an API key has made, with the limits of the key.
func (b *Book) OfKey(id string, limits []llm.Limit) View {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.readLocked(store.ModelAccountOfKey(id))
	v := a.view()
	v.Budgets = spending(a, "key", limits)
	return v
}

// OfAll returns the use of models by all boxes, deleted ones included.
func (b *Book) OfAll() View {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.readLocked(store.ModelAccountOfAll)
	v := a.view()
	v.Budgets = spending(a, "all", []llm.Limit{b.cfg.All})
	return v
}

// readLocked returns an account for reading, its periods as of now.
func (b *Book) readLocked(key string) *account {
	a := b.accounts[key]
	if a == nil {
		a = &account{}
	}
	a.roll(b.cfg.Now())
	return a
}

// spending returns the limits that bound something, with their use.
func spending(a *account, of string, limits []llm.Limit) (list []Spending) {
	for _, l := range limits {
		if l.Bounds() && !slices.ContainsFunc(list, func(s Spending) bool { return s.Limit == l }) {
			list = append(list, a.against(of, l))
		}
	}
	return list
}

package selftest

import (
	"context"
	"slices"
	"sync"
	"time"

	"boxgate/audit"
	"boxgate/policy"
)

// decisions collects the decisions about the box during a run.
type decisions struct {
	mu      sync.Mutex
	events  []audit.Event
	changed chan struct{} // closed and replaced by every event
}

// follow collects until the channel is closed.
func follow(events <-chan audit.Event) *decisions {
	d := &decisions{changed: make(chan struct{})}
	go func() {
		for e := range events {
			d.mu.Lock()
			d.events = append(d.events, e)
			close(d.changed)
			d.changed = make(chan struct{})
			d.mu.Unlock()
		}
	}()
	return d
}

// await returns when every expected decision has been logged, but no later than after most.
func (d *decisions) await(ctx context.Context, attacks []*attack, most time.Duration) {
	late := time.After(most)
	for {
		d.mu.Lock()
		changed := d.changed
		d.mu.Unlock()
		if d.complete(attacks) {
			return
		}
		select {
		case <-changed:
		case <-late:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (d *decisions) complete(attacks []*attack) bool {
	claims := d.assign(attacks)
	return !slices.ContainsFunc(attacks, func(a *attack) bool {
		return a.Verdict != Skipped && len(a.reasons) > 0 && !slices.Contains(a.reasons, claims[a.task.ID].Reason)
	})
}

// assign finds a decision for each attack, preferring one with a promised reason. A decision counts for one attack
// only. The exception are decisions that the kernel only counted because too many came together: they count for that
// many attacks.
func (d *decisions) assign(attacks []*attack) map[int]audit.Event {
	d.mu.Lock()
	left := slices.DeleteFunc(slices.Clone(d.events), func(e audit.Event) bool { return e.Verdict == policy.Allow })
	d.mu.Unlock()
	claimed := map[int]audit.Event{}
	claim := func(fits func(a *attack, e audit.Event) bool) {
		for _, a := range attacks {
			if _, done := claimed[a.task.ID]; done || a.Verdict == Skipped || len(a.reasons) == 0 {
				continue
			}
			i := slices.IndexFunc(left, func(e audit.Event) bool { return fits(a, e) })
			if i < 0 {
				continue
			}
			claimed[a.task.ID] = left[i]
			if left[i].Count > 1 {
				left[i].Count--
			} else {
				left = slices.Delete(left, i, i+1)
			}
		}
	}
	promised := func(a *attack, e audit.Event) bool { return slices.Contains(a.reasons, e.Reason) }
	claim(func(a *attack, e audit.Event) bool { return e.Count == 0 && promised(a, e) && a.matches(e) })
	claim(func(a *attack, e audit.Event) bool { return e.Count > 0 && promised(a, e) })
	claim(func(a *attack, e audit.Event) bool { return e.Count == 0 && a.matches(e) })
	return claimed
}

package snapshots

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"

	"boxgate/policy"
)

// until waits for a condition of turns.
func until(t *turns, holds func() bool) {
	for held := false; !held; runtime.Gosched() {
		t.mu.Lock()
		held = holds()
		t.mu.Unlock()
	}
}

// A box whose captures never end holds up none of another box.
func TestOneBoxHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	turns := turns{free: 2}
	done, err := turns.take(ctx, "slow")
	if err != nil {
		t.Fatal(err)
	}
	var waiting sync.WaitGroup
	for range 5 {
		waiting.Go(func() {
			if _, err := turns.take(ctx, "slow"); !errors.Is(err, context.Canceled) {
				t.Errorf("a second turn of a box: %v", err)
			}
		})
	}
	until(&turns, func() bool { return len(turns.waiting) == 5 || turns.free == 0 })
	if turns.free == 0 {
		t.Fatal("a box has both turns")
	}
	for range 3 {
		again, err := turns.take(t.Context(), "quick")
		if err != nil {
			t.Fatal(err)
		}
		again()
	}
	cancel()
	waiting.Wait()
	done()
	if turns.free != 2 || len(turns.busy) > 0 || len(turns.waiting) > 0 {
		t.Errorf("in the end %+v", &turns)
	}
}

// Boxes get their turns in the order in which they came.
func TestTurnsAreTakenInOrder(t *testing.T) {
	t.Parallel()
	turns := turns{free: 1}
	done, err := turns.take(t.Context(), "first")
	if err != nil {
		t.Fatal(err)
	}
	var order []policy.BoxID // each is added during the turn of its box
	var all sync.WaitGroup
	for i, box := range []policy.BoxID{"first", "second", "third"} {
		all.Go(func() {
			done, err := turns.take(t.Context(), box)
			if err != nil {
				t.Error(err)
				return
			}
			order = append(order, box)
			done()
		})
		until(&turns, func() bool { return len(turns.waiting) == i+1 })
	}
	done()
	all.Wait()
	if len(order) != 3 || order[0] != "first" || order[1] != "second" || order[2] != "third" {
		t.Errorf("turns in the order %v", order)
	}
}

// The zero value, and a box that gave up, leave nothing behind.
func TestTurnsThatNobodyHas(t *testing.T) {
	t.Parallel()
	var none turns
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := none.take(ctx, "box"); err == nil || len(none.waiting) > 0 {
		t.Errorf("%v, %d wait", err, len(none.waiting))
	}
}

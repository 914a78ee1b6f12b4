package snapshots

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/policy"
)

// until waits for a condition on turns.
func until(t *turns, holds func() bool) {
	for held := false; !held; runtime.Gosched() {
		t.mu.Lock()
		held = holds()
		t.mu.Unlock()
	}
}

// A box whose captures never end does not delay other boxes.
func TestOneBoxHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	turns := turns{free: 2}
	_, done, err := turns.acquire(ctx, "slow", false)
	if err != nil {
		t.Fatal(err)
	}
	var waiting sync.WaitGroup
	for range 5 {
		waiting.Go(func() {
			if _, _, err := turns.acquire(ctx, "slow", false); !errors.Is(err, context.Canceled) {
				t.Errorf("a second turn of a box: %v", err)
			}
		})
	}
	until(&turns, func() bool { return len(turns.waiting) == 5 || turns.free == 0 })
	if turns.free == 0 {
		t.Fatal("a box has both turns")
	}
	for range 3 {
		_, again, err := turns.acquire(t.Context(), "quick", false)
		if err != nil {
			t.Fatal(err)
		}
		again()
	}
	cancel()
	waiting.Wait()
	done()
	if turns.free != 2 || len(turns.holders) > 0 || len(turns.waiting) > 0 {
		t.Errorf("in the end %+v", &turns)
	}
}

// Boxes get their turns in the order of arrival.
func TestTurnsAreTakenInOrder(t *testing.T) {
	t.Parallel()
	turns := turns{free: 1}
	_, done, err := turns.acquire(t.Context(), "first", false)
	if err != nil {
		t.Fatal(err)
	}
	var order []policy.BoxID // appended during the turn of the box
	var all sync.WaitGroup
	for i, box := range []policy.BoxID{"first", "second", "third"} {
		all.Go(func() {
			_, done, err := turns.acquire(t.Context(), box, false)
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

// The zero value, and a canceled waiter, leave no state behind.
func TestTurnsThatNobodyHas(t *testing.T) {
	t.Parallel()
	var none turns
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := none.acquire(ctx, "box", false); err == nil || len(none.waiting) > 0 {
		t.Errorf("%v, %d wait", err, len(none.waiting))
	}
}

// Boxes with long captures leave a turn to other boxes, and still get their own.
func TestLongCapturesLeaveATurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := turns{free: 4}
		var begun, finished, roomMade atomic.Int64
		var all sync.WaitGroup
		for _, box := range []policy.BoxID{"a", "b", "c", "d"} {
			all.Go(func() {
				for long := false; ; long = true {
					ctx, done, err := turns.acquire(t.Context(), box, long)
					if err != nil {
						t.Error(err)
						return
					}
					begun.Add(1)
					select {
					case <-ctx.Done():
						if roomMade.Add(1); !errors.Is(context.Cause(ctx), errYielded) || long {
							t.Errorf("%s was ended: %v", box, context.Cause(ctx))
						}
						done()
						continue
					case <-time.After(20 * time.Minute):
						finished.Add(1)
						done()
						return
					}
				}
			})
		}
		time.Sleep(10 * time.Minute)
		if begun.Load() != 4 || roomMade.Load() != 0 {
			t.Errorf("%d begun; %d were ended although no box waited", begun.Load(), roomMade.Load())
		}
		for range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), 2*brief)
			_, done, err := turns.acquire(ctx, "quick", false)
			if err != nil {
				t.Errorf("all turns are taken by long captures: %v", err)
				cancel()
				break
			}
			time.Sleep(time.Second)
			done()
			cancel()
		}
		if roomMade.Load() != 1 {
			t.Errorf("%d made room, for one", roomMade.Load())
		}
		all.Wait()
		if finished.Load() != 4 || turns.free != 4 {
			t.Errorf("%d long captures ended; %+v", finished.Load(), &turns)
		}
	})
}

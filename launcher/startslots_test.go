package launcher

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A key that starts hundreds of commands, in however many boxes, gets only the existing slots, and another key does not
// wait for all of them.
func TestBoxesStartCommandsInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStartSlots()
		s.free = 2
		got := make(chan string, 1000)
		want := func(id string) {
			done, err := s.acquire(t.Context(), starter{key: id})
			if err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Millisecond)
			got <- id
			done()
		}
		for range 100 {
			go want("hostile")
		}
		synctest.Wait()
		if s.free != 0 || len(s.waiting[starter{key: "hostile"}]) != 98 {
			t.Errorf("%d turns are free, %d wait", s.free, len(s.waiting[starter{key: "hostile"}]))
		}
		began := time.Now()
		want("other")
		if waited := time.Since(began); waited > 30*time.Millisecond {
			t.Errorf("the other box waited for %v", waited)
		}
		time.Sleep(time.Second)
		if len(got) != 101 || s.free != 2 || len(s.waiting) != 0 || len(s.order) != 0 {
			t.Errorf("%d have had a turn, %d are free, %d wait", len(got), s.free, len(s.waiting))
		}
	})
}

// A stalled start releases its slot after a while, and a start that no longer waits gets none.
func TestATurnEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStartSlots()
		s.free = 1
		held, err := s.acquire(t.Context(), starter{box: "hostile"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := s.acquire(ctx, starter{box: "impatient"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one that gave up: %v", err)
		}
		began := time.Now()
		done, err := s.acquire(t.Context(), starter{box: "other"})
		if waited := time.Since(began); err != nil || waited > time.Second {
			t.Fatalf("%v, after %v", err, waited)
		}
		held()
		if s.free != 0 {
			t.Error("a turn that was over has ended twice")
		}
		done()
		done()
		if s.free != 1 || len(s.waiting) != 0 || len(s.order) != 0 {
			t.Errorf("%d turns are free, %d wait", s.free, len(s.waiting))
		}
	})
}

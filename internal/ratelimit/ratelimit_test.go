package ratelimit

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// allowed returns the number of events allowed at a moment.
func allowed(l *Limiter, now time.Time) (n int) {
	for l.AllowAt(now) {
		if n++; n > 1_000_000 {
			break
		}
	}
	return n
}

// TestRateFollowsItsLimit: a change takes effect with the next call, in both directions, and does not fill the bucket:
// repeated changes allow no more than the larger rate.
func TestRateFollowsItsLimit(t *testing.T) {
	t.Parallel()
	var own atomic.Int64
	l := New(100, 200, own.Load)
	now := time.Now()
	if n := allowed(l, now); n != 200 {
		t.Errorf("%d are allowed at once, want 200", n)
	}
	own.Store(10)
	for range 50 { // changing the rate up and down leaves the bucket empty
		own.Store(10 - own.Load() + 5)
		if n := allowed(l, now); n != 0 {
			t.Fatalf("a change of the rate lets %d more pass", n)
		}
	}
	own.Store(10)
	allowed(l, now)
	if n := allowed(l, now.Add(time.Second)); n != 10 {
		t.Errorf("%d are allowed in a second, want 10", n)
	}
	if n := allowed(l, now.Add(time.Hour)); n != 20 {
		t.Errorf("%d are allowed at once, want 20", n)
	}
	own.Store(0)
	allowed(l, now.Add(time.Hour))
	if n := allowed(l, now.Add(2*time.Hour)); n != 200 {
		t.Errorf("%d are allowed at once again, want 200", n)
	}
	own.Store(1)
	if n := allowed(l, now.Add(3*time.Hour)); n != 2 {
		t.Errorf("a full bucket that becomes smaller lets %d pass, want 2", n)
	}
}

// TestRateHoldsWhileItChanges: the limit applies at every moment of a change.
func TestRateHoldsWhileItChanges(t *testing.T) {
	t.Parallel()
	var own atomic.Int64
	own.Store(1)
	l := New(2, 4, own.Load)
	now := time.Now()
	var passed atomic.Int64
	var callers sync.WaitGroup
	for i := range 4 {
		callers.Go(func() {
			for range 20_000 {
				if i == 0 {
					own.Store(1 - own.Load())
				}
				if l.AllowAt(now) {
					passed.Add(1)
				}
			}
		})
	}
	callers.Wait()
	if n := passed.Load(); n > 4 {
		t.Errorf("%d passed at once, want 4 at most", n)
	}
}

package quota

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// waits opens a request that has own bytes and requests n more, and returns the result and its duration.
func waits(t *testing.T, b *Book, h Holder, own, n int64) <-chan time.Duration {
	t.Helper()
	s, end := b.Open(h)
	t.Cleanup(end)
	if err := s.Acquire(Memory, own); err != nil {
		t.Fatal(err)
	}
	took := make(chan time.Duration, 1)
	go func() {
		begun := time.Now()
		err := s.AcquireWithin(t.Context(), 2*time.Second, Memory, n)
		if took <- time.Since(begun); err == nil {
			return
		}
		close(took)
	}()
	synctest.Wait()
	return took
}

// A request waits for others to release something, but not longer than it may, and not if that cannot help.
func TestRequestsWaitForRoom(t *testing.T) {
	t.Parallel()
	outcome := func(took <-chan time.Duration) (time.Duration, bool) {
		d := <-took
		select {
		case <-took: // closed
			return d, false
		default:
			return d, true
		}
	}
	for name, c := range map[string]struct {
		holder     Holder
		own, asked int64
		release    time.Duration // when another request ends; 0: it does not
		took       time.Duration
		had        bool
	}{
		"there is room":         {key("a"), 0, 20, 0, 0, true},
		"another ends":          {key("a"), 0, 60, time.Second, time.Second, true},
		"another ends too late": {key("a"), 0, 60, 3 * time.Second, 2 * time.Second, false},
		"it has too much":       {key("a"), 30, 71, time.Second, 0, false},
		"it asks for too much":  {key("a"), 0, 101, time.Second, 0, false},
		"the total":             {key("b"), 0, 80, time.Second, time.Second, true},
		"half of the share":     {key("b"), 0, 151, time.Second, 0, false},
		"the operator":          {operator, 0, 330, 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := New(Config{Defaults: limits(Memory, 100), Totals: limits(Memory, 400)})
				b.Set(key("b"), limits(Memory, 1000))
				_, end := b.Open(operator)
				defer end()
				other, over := b.Open(key("a"))
				if err := other.Acquire(Memory, 70); err != nil {
					t.Fatal(err)
				}
				if c.holder == key("b") { // the rest of the others' share is taken, too
					b.addUnchecked(key("c"), Memory, 140)
				}
				if c.own > 0 {
					other.Release(Memory, c.own)
				}
				took := waits(t, b, c.holder, c.own, c.asked)
				if c.release > 0 {
					time.AfterFunc(c.release, over)
				}
				if d, had := outcome(took); d != c.took || had != c.had {
					t.Errorf("after %v: %v; want %v: %v", d, had, c.took, c.had)
				}
				over()
				if b.waiters.all != 0 || len(b.waiters.of) != 0 || b.waiters.freed != nil {
					t.Errorf("%+v wait still", b.waiters)
				}
			})
		})
	}
}

// Few requests may wait at a time, and few of one key: others are refused immediately, and waiting ones delay nothing.
func TestFewRequestsWaitForRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{Defaults: limits(Memory, 100)})
		waiting := func(h Holder, n int) (waited int) {
			var all []<-chan time.Duration
			for range n {
				all = append(all, waits(t, b, h, 0, 100))
			}
			for _, took := range all {
				if len(took) == 0 {
					waited++
				}
			}
			return waited
		}
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"} {
			b.addUnchecked(key(name), Memory, 1)
			want := maxWaitersPerHolder
			if name == "i" {
				want = 0 // all waiting requests are of the other keys
			}
			if got := waiting(key(name), 2*maxWaitersPerHolder); got != want {
				t.Errorf("%d requests of %s wait, not %d", got, name, want)
			}
		}
		if err := take(t, b, operator, Memory); err != nil {
			t.Error(err)
		}
	})
}

// A cancelled request stops waiting.
func TestWaitingEndsWithTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{Defaults: limits(Memory, 100)})
		b.addUnchecked(key("a"), Memory, 50)
		s, end := b.Open(key("a"))
		defer end()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begun := time.Now()
		if err := s.AcquireWithin(ctx, time.Minute, Memory, 60); err == nil || time.Since(begun) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}

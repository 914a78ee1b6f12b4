package snapshots

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestTransfersAreShared: a key whose transfers do not end leaves places to other keys, and keys together leave one to the operator. The operator
// leaves one to keys. Of the keys that wait, one without a place comes first.
func TestTransfersAreShared(t *testing.T) {
	t.Parallel()
	var s slots
	type place struct {
		done chan func()
		stop context.CancelFunc
	}
	take := func(holder string) place {
		ctx, cancel := context.WithCancel(t.Context())
		p := place{make(chan func(), 1), cancel}
		s.mu.Lock()
		before := len(s.waiting) + s.used
		s.mu.Unlock()
		go func() {
			if done, err := s.take(ctx, holder); err == nil {
				p.done <- done
			}
		}()
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			s.mu.Lock()
			asked := len(s.waiting)+s.used > before
			s.mu.Unlock()
			if asked {
				break
			}
		}
		return p
	}
	has := func(p place) func() {
		t.Helper()
		select {
		case done := <-p.done:
			return done
		case <-time.After(time.Minute):
			t.Fatal("no place")
		}
		return nil
	}
	waits := func(p place, what string) {
		t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(p.done) > 0 {
			t.Error(what)
		}
	}
	first := has(take("key_1"))
	has(take("key_1"))
	third := take("key_1")
	other := has(take("key_2"))
	late, later := take("key_2"), take("key_3")
	waits(third, "a key has more than its share")
	waits(later, "keys have the operator's place")
	operator := has(take(""))
	other() // key_2 has none now, like key_3, and waits for longer
	more := has(late)
	waits(later, "a place was given twice")
	first()
	has(later)
	waits(third, "the key with the most places comes first")
	operator()
	more()
	has(third)
	third.stop()

	s = slots{}
	for range concurrentTransfers - 1 {
		has(take(""))
	}
	waits(take(""), "the operator has all places")
	has(take("key_1"))
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("over")
	cancel(over)
	if _, err := s.take(ctx, "key_2"); !errors.Is(err, over) {
		t.Errorf("a call that ended: %v", err)
	}
}

package peerapi

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/quota"
)

// TestAttackListsOfOneKey: one key has a few calls to all hosts in progress, and all keys a bounded number. Others get their turn when one ends.
func TestAttackListsOfOneKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var all turns
		key := func(id string) quota.Holder { return quota.Holder{Type: quota.APIKey, ID: id} }
		take := func(id string) (func(), error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return all.take(ctx, key(id))
		}
		var ends []func()
		for range mostOfOne {
			end, err := take("flood")
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, end)
		}
		if _, err := take("flood"); !errors.Is(err, errBusy) {
			t.Fatalf("one more: %v", err)
		}
		for i := range mostAsking - mostOfOne {
			if _, err := take(string(rune('A' + i))); err != nil {
				t.Fatalf("another key: %v", err)
			}
		}
		if _, err := take("late"); !errors.Is(err, errBusy) {
			t.Fatalf("beyond the bound of all: %v", err)
		}
		time.AfterFunc(time.Second/2, ends[0])
		end, err := take("late")
		if err != nil {
			t.Fatal(err)
		}
		end()
		end() // again has no effect
		if all.all != mostAsking-1 || all.byKey[key("late")] != 0 {
			t.Errorf("%d turns, %v", all.all, all.byKey)
		}
	})
}

// TestHostsThatWereSilent: a host that did not answer is asked last for a while, until it answers.
func TestHostsThatWereSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s silences
		if s.lately("a") {
			t.Error("silent before it was asked")
		}
		s.note("a", true)
		s.note("b", true)
		if s.note("b", false); !s.lately("a") || s.lately("b") {
			t.Error("the silence was not noted, or the answer")
		}
		if time.Sleep(silentFor + time.Second); s.lately("a") {
			t.Error("silent for ever")
		}
	})
}

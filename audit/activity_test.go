package audit

import (
	"testing"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

// TestActivity: denials are counted even if their events have been forgotten, and leave the count after an hour.
func TestActivity(t *testing.T) {
	t.Parallel()
	l := New(Options{PerBox: 2})
	now := time.Now()
	record := func(box policy.BoxID, ago time.Duration, v policy.Verdict, host string) {
		l.emit(&Event{Box: box, Time: now.Add(-ago), Stage: policy.StageHTTP, Name: host, Verdict: v, Reason: name.ReasonNotAllowed, Count: 2}, false)
	}
	for _, ago := range []time.Duration{2 * time.Hour, 61 * time.Minute, 50 * time.Minute, 10 * time.Minute, time.Second} {
		record("a", ago, policy.Deny, "evil"+ago.String()+".example.com")
	}
	record("a", 5*time.Minute, policy.Deny, "late.example.com")
	record("a", 0, policy.Allow, "good.example.com")
	record("b", 0, policy.Allow, "good.example.com")
	got := l.Activity()
	if len(got) != 2 || got["a"].Denied != 8 || got["b"].Denied != 0 || got["a"].Latest.Name != "good.example.com" || got["a"].Latest.Seq != 7 {
		t.Errorf("%+v", got)
	}
	l.Forget("a")
	if got := l.Activity(); len(got) != 1 {
		t.Errorf("after Forget: %+v", got)
	}
}

// TestHour compares the counter with a list of all denials.
func TestHour(t *testing.T) {
	t.Parallel()
	var h hour
	var all []int64
	for i, minute := range []int64{0, 0, 3, 59, 60, 1, 61, 119, 5, 120, 121, 400, 399, 341, 340, 1000, 10} {
		h.add(minute, uint64(i+1))
		for range i + 1 {
			all = append(all, minute)
		}
		for _, now := range []int64{minute, minute + 1, minute + 30, minute + 59, minute + 60, 2000} {
			if now < h.latest {
				continue // the clock does not go back
			}
			want := uint64(0)
			for _, m := range all {
				if m > now-minutesKept && m <= now {
					want++
				}
			}
			if got := h.sum(now); got != want {
				t.Errorf("after %d, at %d: %d; want %d", minute, now, got, want)
			}
		}
	}
	h.add(1000, 1<<40)
	if got := h.sum(1000); got < 1<<32-1 {
		t.Errorf("a large number: %d", got)
	}
}

package usage

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/audit"
)

func TestCoalescedTellsEachOneASecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []audit.Event
		thin := Coalescer{Record: func(e audit.Event) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, e)
		}}
		told := func(want ...uint64) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			var counts []uint64
			for _, e := range got {
				counts = append(counts, max(e.Count, 1))
			}
			if len(counts) != len(want) {
				t.Fatalf("recorded %v, want %v", counts, want)
			}
			for i := range want {
				if counts[i] != want[i] {
					t.Fatalf("recorded %v, want %v", counts, want)
				}
			}
		}
		for i := range 500 {
			thin.Add(audit.Event{Status: i})
		}
		told(1)
		time.Sleep(coalesceInterval)
		told(1, 499)
		if got[1].Status != 499 {
			t.Errorf("the event is not the latest: %+v", got[1])
		}
		thin.Add(audit.Event{})
		told(1, 499)
		time.Sleep(coalesceInterval)
		told(1, 499, 1)
		time.Sleep(2 * coalesceInterval) // no events, so no record
		told(1, 499, 1)
		thin.Add(audit.Event{})
		thin.Add(audit.Event{})
		thin.Flush()
		told(1, 499, 1, 1, 1)
	})
}

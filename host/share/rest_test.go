package share

import (
	"testing"
	"time"
)

func TestRestAfterABurst(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	now := time.Unix(1000, 0)
	var r restDetector
	step := func(what string, want bool, h heap) {
		t.Helper()
		now = now.Add(restPeriod)
		if got := r.due(now, h); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	step("a burst", false, heap{allocated: 500 * mb, live: 40 * mb, objects: 60 * mb, free: 10 * mb})
	step("quiet for a moment", false, heap{allocated: 500 * mb, live: 40 * mb, objects: 60 * mb, free: 10 * mb})
	step("at rest", true, heap{allocated: 501 * mb, live: 40 * mb, objects: 60 * mb, free: 10 * mb})
	r.gaveBack(100*time.Millisecond, now)
	step("at rest, with nothing to give back", false, heap{allocated: 501 * mb, live: 40 * mb, objects: 41 * mb})
	step("at rest, too soon again", false, heap{allocated: 502 * mb, live: 40 * mb, objects: 60 * mb})
	now = now.Add(restShare * 100 * time.Millisecond)
	step("busy", false, heap{allocated: 520 * mb, live: 40 * mb, objects: 60 * mb})
	step("quiet for a moment", false, heap{allocated: 521 * mb, live: 40 * mb, objects: 60 * mb})
	step("at rest, with little to give back", false, heap{allocated: 521 * mb, live: 40 * mb, objects: 42 * mb, free: 7 * mb})
	step("at rest with free memory", true, heap{allocated: 521 * mb, live: 40 * mb, objects: 42 * mb, free: 8 * mb})
	step("while a collection runs", false, heap{allocated: 521 * mb, live: 40 * mb, objects: 30 * mb})
}

func TestHeapIsRead(t *testing.T) {
	t.Parallel()
	if h := heapReader()(); h.allocated == 0 || h.objects == 0 || h.objects > h.allocated {
		t.Errorf("%+v", h)
	}
}

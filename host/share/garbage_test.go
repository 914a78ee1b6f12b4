package share

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestPercentOfGarbage(t *testing.T) {
	for held, want := range map[uint64]int{0: mostPercent, 1 << 20: mostPercent, 16 << 20: 400, 64 << 20: 100, 1 << 30: 100} {
		if got := percent(held, 64<<20); got != want {
			t.Errorf("%d bytes: %d", held, got)
		}
	}
}

var kept []byte

// With a small live heap, garbage is collected once leastGarbage has accumulated.
func TestLittleGarbageIsNotCollected(t *testing.T) {
	stop := paceCollections(64 << 20)
	defer debug.SetGCPercent(100)
	defer stop()
	runtime.GC()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 640 {
		kept = make([]byte, 1<<20)
	}
	runtime.ReadMemStats(&after)
	if n := after.NumGC - before.NumGC; n > 25 {
		t.Errorf("640 MiB of garbage were collected in %d times", n)
	}
}

// With a large live heap, collections are as frequent as by default; after it shrinks, they become rare again.
func TestPaceFollowsWhatIsHeld(t *testing.T) {
	stop := paceCollections(64 << 20)
	defer debug.SetGCPercent(100)
	defer stop()
	await := func(what string, is func(percent uint64) bool) {
		t.Helper()
		gogc := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		for end := time.Now().Add(time.Minute); ; {
			runtime.GC()
			metrics.Read(gogc)
			if is(gogc[0].Value.Uint64()) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %d %%", what, gogc[0].Value.Uint64())
			}
		}
	}
	for range 3 {
		kept = nil
		await("with little", func(percent uint64) bool { return percent > 500 })
		kept = make([]byte, 128<<20)
		await("with much", func(percent uint64) bool { return percent == 100 })
	}
	kept = nil
}

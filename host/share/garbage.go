package share

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// leastGarbage is the garbage in bytes that may accumulate before a collection. A gateway's live heap is small, and it
// produces much short-lived garbage: collecting whenever garbage equals the live heap, as the runtime does by default,
// costs more CPU than the memory is worth, and delays requests.
const leastGarbage = 32 << 20

// mostPercent is the maximum value of GOGC that paceCollections sets.
const mostPercent = 2000

// paceCollections makes the runtime collect when garbage equals the live heap, but not before there are that many bytes of garbage.
// The runtime's memory limit still applies.
func paceCollections(garbage uint64) (stop func()) {
	stopped := make(chan struct{})
	held := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	set := 100
	var collected func(*sentinel)
	collected = func(s *sentinel) {
		select {
		case <-stopped:
			return
		default:
		}
		metrics.Read(held)
		sum := uint64(0)
		for _, h := range held {
			if h.Value.Kind() != metrics.KindUint64 {
				return // this Go version lacks the metric; its default pace stays
			}
			sum += h.Value.Uint64()
		}
		if want := percent(sum, garbage); want > set+set/10 || want < set-set/10 { // SetGCPercent stops the world for a moment
			debug.SetGCPercent(want)
			set = want
		}
		// Run again at the next collection. A cleanup (runtime.AddCleanup) would run later, after sweeping.
		runtime.SetFinalizer(s, collected)
	}
	collected(&sentinel{})
	return func() { close(stopped) }
}

// sentinel becomes garbage immediately. It contains a pointer, so that the tiny allocator does not batch it with other
// objects.
type sentinel struct{ _ *sentinel }

// percent returns the GOGC value at which garbage bytes accumulate on top of held live bytes.
func percent(held, garbage uint64) int {
	return int(min(max(garbage*100/max(held, 1), 100), mostPercent))
}

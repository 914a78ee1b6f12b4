package share

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// leastGarbage is how many bytes of garbage may pile up before they are collected. A gateway holds little, and makes a lot of garbage
// for a moment: to collect it each time that there is as much of it as is held, as the runtime does, costs more than all of it is worth,
// and has requests wait.
const leastGarbage = 32 << 20

// mostPercent bounds how much garbage there may be for what is held, as GOGC has it.
const mostPercent = 2000

// pace makes the runtime collect garbage when there is as much of it as is held, but not before there is so much. The memory limit of the
// runtime counts all the same.
func pace(garbage uint64) (stop func()) {
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
				return // this version of Go does not say: its own pace is kept
			}
			sum += h.Value.Uint64()
		}
		if want := percent(sum, garbage); want > set+set/10 || want < set-set/10 { // to set it stops everything for a moment
			debug.SetGCPercent(want)
			set = want
		}
		// By the next collection. A cleanup would come later, when everything is swept: if more is held by now, much garbage has piled up.
		runtime.SetFinalizer(s, collected)
	}
	collected(&sentinel{})
	return func() { close(stopped) }
}

// sentinel is garbage from the beginning. It has a pointer, so that it is not allocated together with others.
type sentinel struct{ _ *sentinel }

// percent is GOGC for what is held, of which so much garbage may pile up.
func percent(held, garbage uint64) int {
	return int(min(max(garbage*100/max(held, 1), 100), mostPercent))
}

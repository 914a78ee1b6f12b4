package share

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	restPeriod  = 500 * time.Millisecond
	restPeriods = 2        // periods with little allocation until the gateway counts as at rest
	restAlloc   = 32       // allocating less than 1/restAlloc of the live heap is little
	leastWaste  = 4 << 20  // minimum worth returning; also at least a quarter of the live heap
	leastAlloc  = 64 << 10 // lower bound of little, in bytes
	restShare   = 20       // the reciprocal of the share of time that returning memory may take
)

// ReturnUnused returns memory to the system whenever the gateway comes to rest after a burst, until ctx is done. The runtime
// would keep garbage until as much again as was in use has been allocated, and free memory for minutes.
func ReturnUnused(ctx context.Context) {
	tick := time.NewTicker(restPeriod)
	defer tick.Stop()
	var r restDetector
	read := heapReader()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if !r.due(now, read()) {
				continue
			}
			runtime.GC() // sync.Pool drops its buffers, and stacks shrink, over two collections
			debug.FreeOSMemory()
			r.gaveBack(time.Since(now), time.Now())
		}
	}
}

// heap has the state of the Go heap in bytes.
type heap struct {
	allocated uint64 // cumulative
	live      uint64 // live at the last collection
	objects   uint64 // live at the last collection plus allocated since, in use or garbage
	free      uint64 // free but not returned to the system
}

// heapReader returns a function that reads the state of the heap.
func heapReader() func() heap {
	s := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	return func() heap {
		metrics.Read(s)
		return heap{s[0].Value.Uint64(), s[1].Value.Uint64(), s[2].Value.Uint64(), s[3].Value.Uint64()}
	}
}

// restDetector detects that the gateway is at rest and holds memory that it does not need.
type restDetector struct {
	allocated uint64 // at the last look
	quiet     int    // consecutive periods with little allocation
	earliest  time.Time
}

// due reports whether memory should be returned.
func (r *restDetector) due(now time.Time, h heap) bool {
	more := h.allocated - r.allocated
	r.allocated = h.allocated
	if more > max(h.live/restAlloc, leastAlloc) {
		r.quiet = 0
		return false
	}
	r.quiet++
	waste := h.free + h.objects - min(h.live, h.objects)
	return r.quiet >= restPeriods && waste >= max(h.live/4, leastWaste) && !now.Before(r.earliest)
}

// gaveBack records how long returning memory took.
func (r *restDetector) gaveBack(took time.Duration, now time.Time) {
	r.earliest = now.Add(restShare * took)
}

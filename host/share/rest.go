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
	restPeriods = 2        // without much being allocated: the gateway is at rest
	restAlloc   = 32       // the fraction of the live heap that is not much
	leastWaste  = 4 << 20  // less is not worth the work; nor is less than a quarter of the live heap
	leastAlloc  = 64 << 10 // of what is not much
	restShare   = 20       // the fraction of the time that giving back may take
)

// GiveBack returns memory to the system whenever the gateway comes to rest after a burst, until ctx ends. The runtime by
// itself would keep garbage until as much again as was in use has been allocated, and free memory for minutes.
func GiveBack(ctx context.Context) {
	tick := time.NewTicker(restPeriod)
	defer tick.Stop()
	var r rest
	read := heapReader()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if !r.due(now, read()) {
				continue
			}
			runtime.GC() // pools give up their buffers, and stacks shrink, over two collections
			debug.FreeOSMemory()
			r.gaveBack(time.Since(now), time.Now())
		}
	}
}

// heap is the state of the Go heap in bytes.
type heap struct {
	allocated uint64 // ever
	live      uint64 // found in use by the last collection
	objects   uint64 // the same and what was allocated since, in use or garbage
	free      uint64 // held for later
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

// rest finds out when the gateway is at rest with memory that it does not need.
type rest struct {
	allocated uint64 // when last looked
	quiet     int    // periods in which little was
	earliest  time.Time
}

// due reports whether memory is to be given back.
func (r *rest) due(now time.Time, h heap) bool {
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

// gaveBack notes how long it took to give memory back.
func (r *rest) gaveBack(took time.Duration, now time.Time) { r.earliest = now.Add(restShare * took) }

package meter

import (
	"context"
	"slices"
	"sync"
	"time"

	"boxgate/policy"
)

// SampleInterval is the interval at which the use of running boxes is sampled.
const SampleInterval = 5 * time.Second

const (
	// sampledFor is how long samples are kept.
	sampledFor = time.Hour
	// maxSamples bounds the samples of all boxes together, which take 40 bytes each; each box has an equal part.
	maxSamples = 256 << 10
	// fewSamples is the part of a box when there are very many.
	fewSamples = 12
)

// Gauge is the use of resources by a running box at one time.
type Gauge struct {
	Life          string        // identifies its control group: a new one counts from zero
	CPU           time.Duration // used since the group was made
	Memory, Cache int64         // bytes; Memory contains Cache, which the kernel takes back if it needs the memory
}

// Sample is the use of resources by a box in the time before At.
type Sample struct {
	At            time.Time
	CPUs          float32 // busy CPUs on average since the sample before
	Memory, Cache int64   // bytes, as in [Gauge]
	Disk          int64   // bytes, as last counted
}

// Sampler keeps samples of the use of boxes over time, in memory only. Safe for concurrent use.
type Sampler struct {
	running func() []policy.BoxID // the boxes that are awake
	gauge   func(policy.BoxID) (Gauge, error)
	disk    func(policy.BoxID) int64
	exists  func(policy.BoxID) bool

	mu    sync.Mutex
	boxes map[policy.BoxID]*series // guarded by mu
}

// series are the samples of one box.
type series struct {
	last    Gauge
	lastAt  time.Time // zero: the next gauge has no predecessor
	samples []Sample  // the oldest first
}

// NewSampler returns a Sampler; [Sampler.Run] starts it. gauge reads a box that is running, disk returns the last count of its files.
func NewSampler(running func() []policy.BoxID, gauge func(policy.BoxID) (Gauge, error), disk func(policy.BoxID) int64, exists func(policy.BoxID) bool) *Sampler {
	return &Sampler{running: running, gauge: gauge, disk: disk, exists: exists, boxes: map[policy.BoxID]*series{}}
}

// Run samples the running boxes until ctx is done.
func (s *Sampler) Run(ctx context.Context) {
	tick := time.NewTicker(SampleInterval)
	defer tick.Stop()
	for {
		s.sample()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sample takes one sample of each running box. A box that sleeps has no samples of that time.
func (s *Sampler) sample() {
	running := map[policy.BoxID]Gauge{}
	for _, id := range s.running() {
		if g, err := s.gauge(id); err == nil { // one that is ending or starting has none
			running[id] = g
		}
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, b := range s.boxes {
		if _, ok := running[id]; !ok {
			b.lastAt = time.Time{}
		}
		if b.samples = recent(b.samples, now.Add(-sampledFor)); len(b.samples) == 0 && b.lastAt.IsZero() || !s.exists(id) {
			delete(s.boxes, id)
		}
	}
	for id, g := range running {
		b := s.boxes[id]
		if b == nil {
			b = &series{}
			s.boxes[id] = b
		}
		b.add(g, now, s.disk(id))
	}
	most := min(int(sampledFor/SampleInterval), max(fewSamples, maxSamples/max(1, len(s.boxes))))
	for _, b := range s.boxes {
		b.samples = last(b.samples, most)
	}
}

// add adds the sample that a gauge makes with its predecessor.
func (b *series) add(g Gauge, now time.Time, disk int64) {
	passed := now.Sub(b.lastAt)
	if !b.lastAt.IsZero() && g.Life == b.last.Life && g.CPU >= b.last.CPU && passed > 0 {
		b.samples = append(b.samples, Sample{
			At: now, CPUs: float32(float64(g.CPU-b.last.CPU) / float64(passed)), Memory: g.Memory, Cache: g.Cache, Disk: disk,
		})
	}
	b.last, b.lastAt = g, now
}

// recent returns the samples after a time.
func recent(list []Sample, after time.Time) []Sample {
	i, _ := slices.BinarySearchFunc(list, after, func(s Sample, t time.Time) int { return s.At.Compare(t) })
	return last(list, len(list)-i)
}

// last returns the last samples. Memory of others is given back once it is half of the list's.
func last(list []Sample, most int) []Sample {
	list = list[max(0, len(list)-most):]
	if cap(list) > 2*len(list)+fewSamples {
		return slices.Clone(list)
	}
	return list
}

// Since returns the samples of a box after a time, the oldest first.
func (s *Sampler) Since(id policy.BoxID, after time.Time) []Sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.boxes[id]
	if b == nil {
		return nil
	}
	i, exact := slices.BinarySearchFunc(b.samples, after, func(s Sample, t time.Time) int { return s.At.Compare(t) })
	if exact {
		i++
	}
	return slices.Clone(b.samples[i:])
}

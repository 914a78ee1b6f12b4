package meter

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/policy"
)

// sampled is a table of boxes that each use half a CPU.
type sampled struct {
	awake  []policy.BoxID
	life   string
	cpu    time.Duration
	exists bool
}

func (k *sampled) sampler() *Sampler {
	return NewSampler(func() []policy.BoxID { return k.awake }, func(id policy.BoxID) (Gauge, error) {
		if id == "broken" {
			return Gauge{}, errors.New("it has ended")
		}
		return Gauge{k.life, k.cpu, 100, 40}, nil
	}, func(policy.BoxID) int64 { return 7 }, func(policy.BoxID) bool { return k.exists })
}

// tick takes a sample after an interval in which the boxes use half a CPU.
func (k *sampled) tick(s *Sampler) {
	time.Sleep(SampleInterval)
	k.cpu += SampleInterval / 2
	s.sample()
}

// TestSamples: each sample has the average since the one before. There is none over a pause or a restart of the box, and none of a box that
// is gone or cannot be read.
func TestSamples(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := &sampled{awake: []policy.BoxID{"a", "broken"}, life: "1", exists: true}
		s := k.sampler()
		s.sample()
		if got := s.Since("a", time.Time{}); len(got) != 0 {
			t.Errorf("after one look: %v", got)
		}
		k.tick(s)
		begun := time.Now()
		if got := s.Since("a", time.Time{}); len(got) != 1 || got[0] != (Sample{begun, 0.5, 100, 40, 7}) {
			t.Errorf("%v", got)
		}
		k.tick(s)
		if got := s.Since("a", begun); len(got) != 1 || !got[0].At.After(begun) {
			t.Errorf("since the first: %v", got)
		}
		k.awake = nil
		k.tick(s)
		k.awake = []policy.BoxID{"a"}
		k.tick(s)
		if got := s.Since("a", time.Time{}); len(got) != 2 {
			t.Errorf("over a pause: %v", got)
		}
		k.tick(s)
		k.life, k.cpu = "2", 0
		k.tick(s)
		if got := s.Since("a", time.Time{}); len(got) != 3 {
			t.Errorf("over a restart: %v", got)
		}
		if got := s.Since("broken", time.Time{}); got != nil {
			t.Errorf("a box that cannot be read: %v", got)
		}
		k.awake, k.exists = nil, false
		if k.tick(s); len(s.boxes) != 0 {
			t.Errorf("deleted boxes are kept: %v", s.boxes)
		}
	})
}

// TestSamplesAreBounded: samples are kept for an hour, and fewer of each box if there are many boxes.
func TestSamplesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := &sampled{awake: []policy.BoxID{"a"}, life: "1", exists: true}
		s := k.sampler()
		for range 3 * int(sampledFor/SampleInterval) {
			k.tick(s)
		}
		got := s.Since("a", time.Time{})
		if n := len(got); n != int(sampledFor/SampleInterval) || time.Since(got[0].At) > sampledFor || cap(s.boxes["a"].samples) > 3*n {
			t.Errorf("%d samples since %v, capacity %d", n, time.Since(got[0].At), cap(s.boxes["a"].samples))
		}
		for i := range maxSamples / 100 {
			k.awake = append(k.awake, policy.BoxID(fmt.Sprint(i)))
		}
		k.tick(s)
		if n := len(s.Since("a", time.Time{})); n > 100 {
			t.Errorf("%d samples of a box among %d", n, len(k.awake))
		}
		k.awake = nil
		time.Sleep(sampledFor)
		if k.tick(s); len(s.boxes) != 0 {
			t.Errorf("%d boxes that have slept for an hour have samples", len(s.boxes))
		}
	})
}

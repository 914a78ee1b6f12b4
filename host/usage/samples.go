package usage

import (
	"context"
	"time"

	"boxgate/api"
	"boxgate/host/meter"
	"boxgate/host/state"
	"boxgate/policy"
)

// Samples has the use of launched boxes over time. It implements [boxgate/api/boxes.Samples].
type Samples struct {
	*meter.Sampler
	boxes     *state.Table
	sandboxes state.Sandboxes
}

// NewSamples returns a Samples. Run starts it. usage is the meter of the boxes.
func NewSamples(boxes *state.Table, sandboxes state.Sandboxes, usage *meter.Meter) *Samples {
	running := func() (ids []policy.BoxID) {
		for _, b := range boxes.Unsorted() {
			if v := b.Shown.Load(); b.Attached == nil && v.Status == api.StatusIdle {
				ids = append(ids, b.ID)
			}
		}
		return ids
	}
	gauge := func(id policy.BoxID) (meter.Gauge, error) {
		u, err := sandboxes.Usage(id)
		return meter.Gauge{Life: u.Life, CPU: u.CPU, Memory: u.Memory, Cache: sandboxes.Cache(id)}, err
	}
	disk := func(id policy.BoxID) int64 { return usage.Of(id).Disk.Bytes }
	return &Samples{meter.NewSampler(running, gauge, disk, boxes.Has), boxes, sandboxes}
}

// UsageSamples implements [boxgate/api/boxes.Samples].
func (s *Samples) UsageSamples(_ context.Context, id policy.BoxID, after time.Time) (api.UsageSamples, error) {
	b, err := s.boxes.Find(id)
	if err != nil {
		return api.UsageSamples{}, err
	}
	if b.Attached != nil {
		return api.UsageSamples{}, state.ErrAttached
	}
	has, err := s.sandboxes.CapacityOf(id, b.Shown.Load().Size)
	if err != nil {
		return api.UsageSamples{}, err
	}
	out := api.UsageSamples{Interval: meter.SampleInterval, CPUs: has.CPUs, Memory: has.Memory, Disk: has.Disk}
	for _, one := range s.Since(id, after) {
		out.Samples = append(out.Samples, api.UsageSample{At: one.At, CPUs: float64(one.CPUs), Memory: one.Memory, Cache: one.Cache, Disk: one.Disk})
	}
	return out, nil
}

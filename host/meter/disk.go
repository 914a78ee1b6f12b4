package meter

import (
	"context"
	"time"

	"go.uber.org/zap"

	"boxgate/policy"
)

// A box's files are counted at most once a minute, and so rarely that counting takes at most a twentieth of the time. One
// count takes half a minute at most.
const (
	diskPause = time.Minute
	diskShare = 20
	diskMost  = 30 * time.Second
	diskTick  = 2 * time.Second
)

// countAllFiles counts the files of one box after the other until ctx is done.
func (m *Meter) countAllFiles(ctx context.Context) {
	tick := time.NewTicker(diskTick)
	defer tick.Stop()
	for {
		for _, id := range m.cfg.Boxes() {
			if ctx.Err() == nil && m.diskDue(id) {
				m.countFiles(ctx, id)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// diskDue reports whether a box's files should be counted: it is time, and the box may have changed them, since it has
// used CPU time.
func (m *Meter) diskDue(id policy.BoxID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.accounts[id]
	if a == nil {
		return false
	}
	return a.disk.At.IsZero() || a.cpuAtCount != a.total.CPU.Total && time.Since(a.disk.At) > max(diskPause, diskShare*a.countTook)
}

func (m *Meter) countFiles(ctx context.Context, id policy.BoxID) {
	limited, cancel := context.WithTimeout(ctx, diskMost)
	defer cancel()
	began, worked := time.Now(), m.Of(id).CPU
	d, err := m.cfg.Kernel.Disk(limited, id)
	if ctx.Err() != nil {
		return
	}
	if err != nil && limited.Err() == nil {
		m.cfg.Log.Debug("the files of a box could not be counted", zap.String("box", string(id)), zap.Error(err))
	}
	d.Whole, d.At = d.Whole && err == nil, time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.accounts[id]; a != nil {
		a.disk, a.countTook, a.cpuAtCount = d, time.Since(began), uint64(worked)
	}
}

package usage

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/state"
	"boxgate/launcher"
)

// countEnds registers the metric of boxes whose first process has ended.
func (u *Service) countEnds(metrics *prometheus.Registry) error {
	u.ends = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "boxgate_boxes_ended_total", Help: "Unexpected ends of the first processes of boxes.",
	})
	return metrics.Register(u.ends)
}

// Watch watches for the end of a launched box's first process, which was just started or recovered. The caller holds the
// lock of b.
func (u *Service) Watch(b *state.Box) {
	b.Starts++
	life := b.Starts
	ended := func() { u.showEnded(b, life) }
	process, err := u.sandboxes.FirstProcess(b.ID)
	switch {
	case err == nil:
		u.watcher.Watch(b.ID, process, ended)
	case errors.Is(err, launcher.ErrNotRunning):
		go ended()
	default:
		u.log.Error("the end of a box can only be noticed when the box is used", zap.String("box", string(b.ID)), zap.Error(err))
	}
}

// showEnded shows that the first process of a box has ended, unless the box was started again or deleted since.
func (u *Service) showEnded(b *state.Box, life uint64) {
	err := change.Contain(u.log, func() error {
		ctx := context.Background()
		if now, err := u.sandboxes.State(ctx, b.ID); err != nil || now.Pid != 0 {
			return err
		}
		b.Lock()
		defer b.Unlock()
		if err := b.AwaitStateChange(ctx); err != nil || b.Starts != life {
			return err
		}
		if b.Status == api.StatusIdle || b.Status == api.StatusPaused {
			_ = u.noteEnded(b) // the next user gets the error
		}
		return nil
	}, zap.String("box", string(b.ID)))
	if err != nil && !errors.Is(err, api.ErrNotFound) && !errors.Is(err, launcher.ErrNotFound) {
		u.log.Error("the state of a box could not be checked; it is checked again when the box is used", zap.String("box", string(b.ID)), zap.Error(err))
	}
}

// noteEnded puts a box in state error because its first process has ended, and returns the reason. The caller holds the
// lock of b.
func (u *Service) noteEnded(b *state.Box) error {
	why := u.sandboxes.WhyEnded(b.ID)
	b.Ended = true
	b.ShowError(why.Error())
	u.ends.Inc()
	u.history.Log(b.ID, "error", "system", "the box has ended: %v", why)
	u.log.Warn("a box has ended", zap.String("box", string(b.ID)), zap.String("status", string(api.StatusError)), zap.String("reason", why.Error()))
	return why
}

// noteUsedAfterEnd is noteEnded for a box whose end was only discovered by its user. A resume call starts it.
func (u *Service) noteUsedAfterEnd(b *state.Box) error {
	b.Lock()
	defer b.Unlock()
	if b.Status == api.StatusIdle && b.StateChange == nil {
		return u.noteEnded(b)
	}
	return u.sandboxes.WhyEnded(b.ID)
}

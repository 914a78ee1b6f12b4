package usage

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/host/change"
	"boxgate/host/meter"
	"boxgate/host/procwatch"
	"boxgate/host/state"
	"boxgate/internal/required"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/store"
)

// Starter starts boxes that have no processes.
type Starter interface {
	// Restart starts a box again with its files. After an error the box is left without processes. The caller holds the
	// lock of b, and has begun a change of its state.
	Restart(ctx context.Context, b *state.Box) error
	// RenewRoots adds the configured roots to the certificates of a running box, unless it was given them before.
	RenewRoots(ctx context.Context, id policy.BoxID) error
}

// Config configures a [Service].
type Config struct {
	Log       *zap.Logger
	Records   store.Boxes
	Boxes     *state.Table
	Sandboxes state.Sandboxes
	Starter   Starter
	History   *history.History
	Space     func(n int64) error // returns an error if n more bytes would not leave the gateway's reserve on the disk
	Metrics   *prometheus.Registry
}

// Service lets callers use launched boxes: run commands, access files, serve visitors. It pauses and wakes boxes. Safe
// for concurrent use.
type Service struct {
	log       *zap.Logger
	records   store.Boxes
	boxes     *state.Table
	sandboxes state.Sandboxes
	starter   Starter
	history   *history.History
	space     func(n int64) error
	watcher   procwatch.Watcher
	renew     func(context.Context, *state.Box) error // see RenewBy
	renewing  sync.Mutex                              // serialises calls of RenewRoots
	ends      prometheus.Counter                      // boxes whose first process has ended
}

// New returns the service.
func New(c Config) (*Service, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	u := &Service{log: c.Log, records: c.Records, boxes: c.Boxes, sandboxes: c.Sandboxes, starter: c.Starter, history: c.History, space: c.Space}
	return u, u.countEnds(c.Metrics)
}

// RenewBy sets the function that gives a box a new end before it is resumed, if it was paused at its end. An error of it keeps the box
// paused. It is called with the lock of the box. Call RenewBy once, before there are boxes.
func (u *Service) RenewBy(f func(context.Context, *state.Box) error) { u.renew = f }

// Close stops watching the first processes of boxes.
func (u *Service) Close() { u.watcher.Close() }

// acquire returns a launched box that is awake. A paused box is resumed; a box that is being created is waited for. Until
// done is called the box counts as used, and stays awake unless an API call pauses it. The caller must call done, which
// may be called more than once.
func (u *Service) acquire(ctx context.Context, id policy.BoxID) (b *state.Box, done func(), err error) {
	b, err = u.boxes.Find(id)
	if err != nil {
		return nil, nil, err
	}
	if b.Attached != nil {
		return nil, nil, state.ErrAttached
	}
	for !b.Gate.Enter() {
		if err := u.awaken(ctx, b); err != nil {
			return nil, nil, err
		}
	}
	return b, sync.OnceFunc(b.Gate.Leave), nil
}

// Wake wakes a box.
func (u *Service) Wake(ctx context.Context, id policy.BoxID) error {
	_, done, err := u.acquire(ctx, id)
	if err == nil {
		done()
	}
	return err
}

// doAwake calls f with a box that is awake, as returned by acquire. If f returns [launcher.ErrPaused], because the box
// was paused in between, it calls f again; f must not have had any effect then.
func (u *Service) doAwake(ctx context.Context, id policy.BoxID, f func(*state.Box) error) error {
	return u.doFor(ctx, id, nil, f)
}

// doFor is doAwake for a caller who may leave before f returns. Once left is closed, f does not keep the box awake.
func (u *Service) doFor(ctx context.Context, id policy.BoxID, left <-chan struct{}, f func(*state.Box) error) error {
	for {
		b, done, err := u.acquire(ctx, id)
		if err != nil {
			return err
		}
		returned := make(chan struct{})
		if left != nil {
			go func() {
				select {
				case <-left:
					done()
				case <-returned:
				}
			}()
		}
		err = f(b)
		close(returned)
		done()
		switch {
		case errors.Is(err, launcher.ErrNotRunning):
			return api.Errorf(api.ErrConflict, "the box does not run: %w", u.noteUsedAfterEnd(b))
		case !errors.Is(err, launcher.ErrPaused) || ctx.Err() != nil:
			return err
		}
		u.markPaused(b)
	}
}

// markPaused records that a box is paused that should be awake. The next use wakes it.
func (u *Service) markPaused(b *state.Box) {
	b.Lock()
	defer b.Unlock()
	if b.Status == api.StatusIdle && b.StateChange == nil {
		b.Status, b.Problem = api.StatusPaused, ""
		b.Publish()
	}
}

// awaken wakes a paused box, or waits for one that is being paused, resumed or created.
func (u *Service) awaken(ctx context.Context, b *state.Box) error {
	b.Lock()
	defer b.Unlock()
	if u.boxes.HandedOver.Load() {
		return state.ErrHandedOver
	}
	if err := b.AwaitStateChange(ctx); err != nil {
		return err
	}
	switch b.Status {
	case api.StatusIdle:
		return nil // changed in the meantime
	case api.StatusPaused:
		if b.Record.PausedAtEnd && !b.Record.AutoResume {
			return errAtEnd
		}
		if err := u.mayGoOn(b); err != nil {
			return err
		}
		return u.resume(ctx, b)
	}
	return api.Errorf(api.ErrConflict, "the box is in state %s: %s", b.Status, b.Problem)
}

// errAtEnd refuses to wake a box by its use.
var errAtEnd = api.Errorf(api.ErrConflict, "the box was paused at its end, and only a call of resume continues it, which gives it a new end; set auto_resume for boxes that any use continues")

// PauseBox implements [boxgate/api/lifecycle.Host].
func (u *Service) PauseBox(ctx context.Context, id policy.BoxID) (api.Box, error) {
	return u.changeState(ctx, id, func(b *state.Box) error {
		switch {
		case b.Record.KeepAlive:
			return api.Errorf(api.ErrConflict, "the box has keep_alive and cannot be paused; delete it when it is not needed any more")
		case b.Status == api.StatusPaused:
			return nil
		case b.Status == api.StatusIdle:
			return u.pause(ctx, b)
		}
		return api.Errorf(api.ErrConflict, "the box is in state %s and cannot be paused: %s", b.Status, b.Problem)
	})
}

// ResumeBox implements [boxgate/api/lifecycle.Host].
func (u *Service) ResumeBox(ctx context.Context, id policy.BoxID) (api.Box, error) {
	return u.changeState(ctx, id, func(b *state.Box) error {
		switch {
		case b.Status == api.StatusIdle:
			b.Gate.Touch(time.Now())
			return nil
		case b.Status == api.StatusPaused, b.Ended:
			if err := u.mayGoOn(b); err != nil {
				return err
			}
			return u.resume(ctx, b)
		}
		return api.Errorf(api.ErrConflict, "the box is in state %s and cannot be resumed: %s", b.Status, b.Problem)
	})
}

// changeState calls f with a launched box that is locked and has no other change of state running.
func (u *Service) changeState(ctx context.Context, id policy.BoxID, f func(*state.Box) error) (api.Box, error) {
	b, err := u.boxes.Lock(id)
	if err != nil {
		return api.Box{}, err
	}
	defer b.Unlock()
	if b.Attached != nil {
		return api.Box{}, state.ErrAttached
	}
	if err := b.AwaitStateChange(ctx); err != nil {
		return api.Box{}, err
	}
	if err := f(b); err != nil {
		return api.Box{}, err
	}
	return b.View(), nil
}

// Pause is pause for a box that is idle and has no other change of state running. The caller holds the lock of b.
func (u *Service) Pause(ctx context.Context, b *state.Box) error { return u.pause(ctx, b) }

// pause freezes a box, and then stores its state. If that fails, the box is resumed. The caller holds the lock of b.
func (u *Service) pause(ctx context.Context, b *state.Box) error {
	ctx, cancel := change.Detach(ctx)
	defer cancel()
	defer b.BeginStateChange()()
	err := u.contain(b, func() error { return u.sandboxes.Pause(ctx, b.ID) })
	if b.Deleting {
		return api.ErrNotFound
	}
	if err != nil {
		return u.stateChangeError(b, "paused", err)
	}
	if !b.Connected() {
		return closedWhile(b, "paused")
	}
	if err = b.SetState(u.records, api.StatusPaused, ""); err == nil {
		return nil
	}
	err = change.NotStored(u.log, "the box was not paused, since that could not be stored", err)
	return errors.Join(err, u.contain(b, func() error { return u.sandboxes.Resume(ctx, b.ID) }))
}

// resume wakes a paused box, or starts one without processes, and then stores its state; a gateway that dies in between
// finds the box awake. It continues if the caller disconnects. The caller holds the lock of b.
func (u *Service) resume(ctx context.Context, b *state.Box) error {
	ctx, cancel := change.Detach(ctx)
	defer cancel()
	if b.Record.PausedAtEnd {
		if err := u.renew(ctx, b); err != nil {
			return err
		}
	}
	defer b.BeginStateChange()()
	var err error
	if b.Ended || !b.Connected() {
		err = u.startAgain(ctx, b)
	} else {
		err = u.contain(b, func() error {
			if err := u.sandboxes.Resume(ctx, b.ID); err != nil {
				return err
			}
			_ = u.renewRoots(ctx, b) // logged; the box works without them
			return nil
		})
	}
	if b.Deleting {
		return api.ErrNotFound
	}
	if err != nil {
		return u.stateChangeError(b, "resumed", err)
	}
	b.Ended = false
	if !b.Connected() {
		return closedWhile(b, "resumed")
	}
	b.Gate.Touch(time.Now())
	if err := b.SetState(u.records, api.StatusIdle, ""); err != nil {
		u.log.Error("that a box was resumed could not be stored", zap.String("box", string(b.ID)), zap.Error(err))
		b.Status, b.Problem = api.StatusIdle, "" // it is awake, as the next start will find
	}
	return nil
}

// startAgain starts a box without processes. Its init command runs again. The caller holds the lock of b.
func (u *Service) startAgain(ctx context.Context, b *state.Box) error {
	if err := u.starter.Restart(ctx, b); err != nil {
		return err
	}
	u.Watch(b)
	b.Gate.Started()
	u.RunInit(b)
	return nil
}

// closedWhile is the error if a policy change has closed the box while it was being paused or resumed. The box keeps its
// state and problem. The caller holds the lock of b.
func closedWhile(b *state.Box, what string) error {
	return api.Errorf(api.ErrUnavailable, "the box was %s, but it cannot be used: %s", what, b.Problem)
}

// contain runs a step of the launcher without the lock of the box, which the caller holds. A panic is returned as an
// error.
func (u *Service) contain(b *state.Box, step func() error) error {
	return b.Unlocked(func() error { return change.Contain(u.log, step, zap.String("box", string(b.ID))) })
}

// stateChangeError returns the error for a box that could not be paused or resumed. The caller holds the lock of b.
func (u *Service) stateChangeError(b *state.Box, what string, err error) error {
	u.log.Error("a box could not be "+what, zap.String("box", string(b.ID)), zap.Error(err))
	if errors.Is(err, launcher.ErrNotRunning) {
		return api.Errorf(api.ErrConflict, "the box could not be %s: %w", what, u.noteEnded(b))
	}
	return api.Errorf(api.ErrUnavailable, "the box could not be %s; try again: %w", what, err)
}

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

// SetInitCommand implements [boxgate/api/lifecycle.Host]. The command runs at the box's next start.
func (u *Service) SetInitCommand(_ context.Context, id policy.BoxID, command string) error {
	b, err := u.boxes.Lock(id)
	if err != nil {
		return err
	}
	defer b.Unlock()
	switch {
	case b.Attached != nil:
		return state.ErrAttached
	case !b.Record.KeepAlive && command != "":
		return change.InvalidAt("/init_command", "needs a box that was created with keep_alive: true")
	}
	record := b.Record
	record.InitCommand, record.UpdatedAt = command, time.Now()
	if err := u.records.Update(record); err != nil {
		return change.NotStored(u.log, "the init command could not be stored, nothing was changed", err)
	}
	b.Record = record
	b.Publish()
	return nil
}

// Listing lists boxes with their resource usage.
type Listing struct {
	*state.Table
	meter  *meter.Meter
	models func(policy.BoxID) api.ModelUsage
}

// NewListing returns a Listing of the boxes in a table. models returns the use of models by a box.
func NewListing(boxes *state.Table, m *meter.Meter, models func(policy.BoxID) api.ModelUsage) *Listing {
	return &Listing{boxes, m, models}
}

// Box implements the Finder of [boxgate/api/rest].
func (l *Listing) Box(_ context.Context, idOrName string) (api.Box, error) {
	b, err := l.Find(policy.BoxID(idOrName))
	if err != nil && idOrName != "" {
		for _, other := range l.All() {
			if other.Name == idOrName {
				b, err = other, nil
			}
		}
	}
	if err != nil {
		return api.Box{}, api.Errorf(api.ErrNotFound, "there is no box %q", idOrName)
	}
	return l.withUsage(b.View(), false), nil
}

// FreshBox implements the Table of [boxgate/api/boxes].
func (l *Listing) FreshBox(ctx context.Context, idOrName string) (api.Box, error) {
	b, err := l.Box(ctx, idOrName)
	if err != nil {
		return b, err
	}
	return l.withUsage(b, true), nil
}

// withUsage adds the box's usage. If fresh is set, it reads the kernel's counters first.
func (l *Listing) withUsage(v api.Box, fresh bool) api.Box {
	if fresh {
		l.meter.Refresh(v.ID)
	}
	v.Usage = usageView(l.meter.Of(v.ID))
	v.Usage.Models = l.models(v.ID)
	return v
}

// Boxes implements the Table of [boxgate/api/boxes].
func (l *Listing) Boxes(_ context.Context, f api.BoxFilter) ([]api.Box, error) {
	var views []api.Box
	for _, b := range l.All() {
		if v := b.View(); f.Selects(v) {
			views = append(views, l.withUsage(v, false))
		}
	}
	return views, nil
}

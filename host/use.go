package host

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/host/vigil"
	"boxgate/launcher"
	"boxgate/policy"
)

// usage lets callers work in launched boxes: run commands, reach files, answer visitors. It puts boxes to sleep and wakes them.
type usage struct {
	states
	log       *zap.Logger
	boxes     *boxes
	sandboxes sandboxes
	history   *history.History
	room      func(n int64) error // refuses what would use the disk that is kept for the gateway
	vigil     vigil.Vigil
	ends      prometheus.Counter // of boxes that have ended by themselves
	// restart starts a box again that nothing runs of. The caller holds b.mu.
	restart func(context.Context, *box) error
}

// use returns a launched box that is awake. A paused one is resumed; one that is being made is waited for. Until done is called
// the box counts as running, and stays awake unless a caller of the API pauses it. The caller must call done, which may be
// called more than once.
func (u *usage) use(ctx context.Context, id policy.BoxID) (b *box, done func(), err error) {
	b, err = u.boxes.find(id)
	if err != nil {
		return nil, nil, err
	}
	if b.attached != nil {
		return nil, nil, errAttached
	}
	for !b.gate.Enter() {
		if err := u.rouse(ctx, b); err != nil {
			return nil, nil, err
		}
	}
	return b, sync.OnceFunc(b.gate.Leave), nil
}

// wake wakes a box.
func (u *usage) wake(ctx context.Context, id policy.BoxID) error {
	_, done, err := u.use(ctx, id)
	if err == nil {
		done()
	}
	return err
}

// do calls f with a box that is awake, as use returns it. If f finds the box paused, because somebody paused it in between, it
// is called again; it must not have done anything then.
func (u *usage) do(ctx context.Context, id policy.BoxID, f func(*box) error) error {
	return u.doFor(ctx, id, nil, f)
}

// doFor is do for somebody who may leave before f returns: from then on f does not keep the box awake.
func (u *usage) doFor(ctx context.Context, id policy.BoxID, left <-chan struct{}, f func(*box) error) error {
	for {
		b, done, err := u.use(ctx, id)
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
		u.noteAsleep(b)
	}
}

// noteAsleep notes that a box that should be awake is paused: the next use wakes it.
func (u *usage) noteAsleep(b *box) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.status == api.StatusIdle && b.moving == nil {
		b.status, b.problem = api.StatusPaused, ""
		b.publish()
	}
}

// rouse wakes a box that sleeps, or waits for one that is falling asleep, waking, or being made.
func (u *usage) rouse(ctx context.Context, b *box) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if u.boxes.lent.Load() {
		return errLent
	}
	if err := b.settled(ctx); err != nil {
		return err
	}
	switch b.status {
	case api.StatusIdle:
		return nil // by now
	case api.StatusPaused:
		if err := u.mayGoOn(b); err != nil {
			return err
		}
		return u.resume(ctx, b)
	}
	return api.Errorf(api.ErrConflict, "the box is in state %s: %s", b.status, b.problem)
}

// PauseBox implements [boxgate/api/lifecycle.Host].
func (u *usage) PauseBox(ctx context.Context, id policy.BoxID) (api.Box, error) {
	return u.change(ctx, id, func(b *box) error {
		switch {
		case b.record.KeepAlive:
			return api.Errorf(api.ErrConflict, "the box has keep_alive and cannot be paused; delete it when it is not needed any more")
		case b.status == api.StatusPaused:
			return nil
		case b.status == api.StatusIdle:
			return u.pause(ctx, b)
		}
		return api.Errorf(api.ErrConflict, "the box is in state %s and cannot be paused: %s", b.status, b.problem)
	})
}

// ResumeBox implements [boxgate/api/lifecycle.Host].
func (u *usage) ResumeBox(ctx context.Context, id policy.BoxID) (api.Box, error) {
	return u.change(ctx, id, func(b *box) error {
		switch {
		case b.status == api.StatusIdle:
			b.gate.Touch(time.Now())
			return nil
		case b.status == api.StatusPaused, b.ended:
			if err := u.mayGoOn(b); err != nil {
				return err
			}
			return u.resume(ctx, b)
		}
		return api.Errorf(api.ErrConflict, "the box is in state %s and cannot be resumed: %s", b.status, b.problem)
	})
}

// change calls f with the lock of a launched box that no other change of state is under way of.
func (u *usage) change(ctx context.Context, id policy.BoxID, f func(*box) error) (api.Box, error) {
	b, err := u.boxes.lock(id)
	if err != nil {
		return api.Box{}, err
	}
	defer b.mu.Unlock()
	if b.attached != nil {
		return api.Box{}, errAttached
	}
	if err := b.settled(ctx); err != nil {
		return api.Box{}, err
	}
	if err := f(b); err != nil {
		return api.Box{}, err
	}
	return b.view(), nil
}

// pause freezes a box, and then stores that. A box whose sleep could not be stored goes on. The caller holds b.mu.
func (u *usage) pause(ctx context.Context, b *box) error {
	ctx, cancel := begun(ctx)
	defer cancel()
	defer b.move()()
	err := u.contained(b, func() error { return u.sandboxes.Pause(ctx, b.ID) })
	if b.deleting {
		return api.ErrNotFound
	}
	if err != nil {
		return u.failed(b, "paused", err)
	}
	if !b.connected() {
		return b.closedWhile("paused")
	}
	if err = u.setState(b, api.StatusPaused, ""); err == nil {
		return nil
	}
	err = notStored(u.log, "the box was not paused, since that could not be stored", err)
	return errors.Join(err, u.contained(b, func() error { return u.sandboxes.Resume(ctx, b.ID) }))
}

// resume wakes a paused box, or starts one of which nothing runs, and then stores that: a gateway that dies in between finds the
// box awake. It goes on when the caller has gone. The caller holds b.mu.
func (u *usage) resume(ctx context.Context, b *box) error {
	ctx, cancel := begun(ctx)
	defer cancel()
	defer b.move()()
	var err error
	if b.ended || !b.connected() {
		err = u.restart(ctx, b)
	} else {
		err = u.contained(b, func() error { return u.sandboxes.Resume(ctx, b.ID) })
	}
	if b.deleting {
		return api.ErrNotFound
	}
	if err != nil {
		return u.failed(b, "resumed", err)
	}
	b.ended = false
	if !b.connected() {
		return b.closedWhile("resumed")
	}
	b.gate.Touch(time.Now())
	if err := u.setState(b, api.StatusIdle, ""); err != nil {
		u.log.Error("that a box was resumed could not be stored", zap.String("box", string(b.ID)), zap.Error(err))
		b.status, b.problem = api.StatusIdle, "" // it is awake, and the next start finds it so
	}
	return nil
}

// closedWhile is the answer when a change of the policy has closed the box while it was paused or resumed. Its state stays the one that
// says so. The caller holds b.mu.
func (b *box) closedWhile(what string) error {
	return api.Errorf(api.ErrUnavailable, "the box was %s, but it cannot be used: %s", what, b.problem)
}

// contained takes a step of the launcher without the lock of the box, which the caller holds. A panic is an error.
func (u *usage) contained(b *box, step func() error) error {
	return b.unlocked(func() error { return contained(u.log, step, zap.String("box", string(b.ID))) })
}

// failed is the answer when a box could not be paused or resumed. The caller holds b.mu.
func (u *usage) failed(b *box, what string, err error) error {
	u.log.Error("a box could not be "+what, zap.String("box", string(b.ID)), zap.Error(err))
	if errors.Is(err, launcher.ErrNotRunning) {
		return api.Errorf(api.ErrConflict, "the box could not be %s: %w", what, u.noteEnded(b))
	}
	return api.Errorf(api.ErrUnavailable, "the box could not be %s; try again: %w", what, err)
}

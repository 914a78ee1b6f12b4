package launcher

import (
	"context"
	"errors"
	"fmt"

	"boxgate/internal/fault"
	"boxgate/policy"
)

// Pause freezes all processes of a box. It keeps its memory, uses no CPU and does not respond. Commands that are being
// started finish starting first, and continue when the box is resumed. Pausing a paused box is a no-op.
func (l *Launcher) Pause(ctx context.Context, id policy.BoxID) error {
	defer l.lock(id)()
	_, err := l.freeze(ctx, id, false)
	return err
}

// Resume thaws a paused box. Resuming a running box is a no-op.
func (l *Launcher) Resume(ctx context.Context, id policy.BoxID) error {
	defer l.lock(id)()
	return l.thaw(ctx, id)
}

// WhileFrozen calls f while the box is frozen and returns f's error. Afterwards the box is thawed, also if f fails, unless it
// was paused before. Commands and calls that change the box wait until then. If this process dies in f, the box stays
// frozen: [Launcher.Recover] returns it in StatePaused.
func (l *Launcher) WhileFrozen(ctx context.Context, id policy.BoxID, f func() error) (err error) {
	defer l.lock(id)()
	was, err := l.freeze(ctx, id, true)
	if err != nil {
		return err
	}
	if !was {
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
			defer cancel()
			err = errors.Join(err, l.thaw(ctx, id))
		}()
	}
	return f()
}

// freeze freezes a box and reports whether it was frozen already. The caller holds the box's lock.
func (l *Launcher) freeze(ctx context.Context, id policy.BoxID, briefly bool) (was bool, err error) {
	was, err = l.isFrozen(ctx, id)
	switch {
	case errors.Is(err, ErrNotRunning):
		return false, fmt.Errorf("box %s: %w", id, err)
	case err != nil:
		return false, err
	case was && l.runtime.OwnPause:
		return true, nil
	case was:
		return true, l.cgroup(id).CompleteFreeze(ctx)
	}
	l.motion.BlockStarts(ctx, id, briefly)
	if err = l.freezeProcesses(ctx, id); err == nil {
		err = fault.At(ctx, "pause: box frozen")
	}
	if err == nil {
		return false, nil
	}
	// The freezer may have stopped some of the processes.
	thawing, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	return false, errors.Join(fmt.Errorf("box %s cannot be paused: %w", id, err), l.thaw(thawing, id))
}

// isFrozen reports whether a running box is frozen; if the box does not run, it returns ErrNotRunning. It asks the
// runtime, which costs at least one process, only if the launcher does not freeze boxes itself.
func (l *Launcher) isFrozen(ctx context.Context, id policy.BoxID) (bool, error) {
	if l.runtime.OwnPause {
		st, err := l.State(ctx, id)
		if err == nil && st.Pid == 0 {
			err = ErrNotRunning
		}
		return st.State == StatePaused, err
	}
	r, err := l.loadRecord(id)
	if err != nil {
		return false, err
	}
	lives, err := l.isAlive(id)
	if err == nil && !(lives && r.Created) {
		err = ErrNotRunning
	}
	if err != nil {
		return false, err
	}
	return l.cgroup(id).IsFreezing()
}

// thaw resumes a box. The caller holds the box's lock.
func (l *Launcher) thaw(ctx context.Context, id policy.BoxID) error {
	var err error
	if !l.runtime.OwnPause {
		err = l.cgroup(id).Thaw() // even if the state of the box cannot be determined
	}
	still, serr := l.isFrozen(ctx, id)
	if err = errors.Join(err, serr); err == nil && still {
		err = callRuntime(ctx, func(ctx context.Context) error { return l.runc.Resume(ctx, string(id)) })
	}
	if err != nil {
		l.motion.KeepBlocked(id)
		return fmt.Errorf("box %s cannot be resumed: %w", id, err)
	}
	l.motion.AllowStarts(id)
	return fault.At(ctx, "resume: box thawed")
}

// freezeProcesses freezes the box, through the freezer of its control group, or through the runtime if only that can pause a box
// ([oci.Runtime].OwnPause). It returns when no process moves.
func (l *Launcher) freezeProcesses(ctx context.Context, id policy.BoxID) error {
	if l.runtime.OwnPause {
		return callRuntime(ctx, func(ctx context.Context) error { return l.runc.Pause(ctx, string(id)) })
	}
	return l.cgroup(id).Freeze(ctx)
}

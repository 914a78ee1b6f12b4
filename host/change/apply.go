package change

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/internal/fault"
)

// Change is one change of the permissions of boxes: of a policy, of header rules, or of the protected ranges. [Apply] makes the
// change.
type Change struct {
	What string // for errors and the log

	// Stage writes the new state next to the committed one, without effect. The next start drops uncommitted staged
	// state.
	Stage func() error
	// Enforce applies the new state. On error it has restored the previous state, or closed the box.
	Enforce func(context.Context) error
	// Commit makes the staged state the one that the next start applies, and updates memory.
	Commit func() error
	// Abort drops the staged state. It is nil for a change that is retried instead of rolled back.
	Abort func() error
	// ApplyStored applies the stored state and updates memory, when it is unknown how far the change got. It reports whether
	// the stored state is the new one.
	ApplyStored func() (took bool, err error)
}

// Apply makes a change: it stages the new state on disk, applies it, and commits it. After a failure before the commit
// the old state stays applied and committed. A commit may fail after the new state has reached the disk, and after a
// panic it is unknown how far the change got: in both cases the stored state is applied. If the gateway dies, the next
// one applies the committed state.
//
// Once begun, the change runs to its end even if ctx is canceled. The caller serialises changes of the same kind.
func Apply(ctx context.Context, log *zap.Logger, c Change) error {
	ctx, cancel := Detach(ctx)
	defer cancel()
	var err error
	if panicked := Contain(log, func() error { err = c.run(ctx, log); return nil }, zap.String("change", c.What)); panicked != nil {
		_, failed := c.ApplyStored()
		return api.Errorf(api.ErrUnavailable, "the change may have been rolled back; check the current state: %w", errors.Join(panicked, failed))
	}
	return err
}

// run takes the steps of Apply.
func (c Change) run(ctx context.Context, log *zap.Logger) error {
	if err := c.Stage(); err != nil {
		return NotStored(log, c.What+" could not be stored, nothing was changed", err)
	}
	err := fault.At(ctx, "change: staged")
	if err == nil {
		err = c.Enforce(ctx)
	}
	if err != nil {
		outcome := "it will be tried again"
		if c.Abort != nil {
			outcome, err = "the change was rolled back", errors.Join(err, c.Abort())
		}
		log.Error("a change could not be applied; "+outcome, zap.String("change", c.What), zap.Error(err))
		return api.Errorf(api.ErrUnavailable, "%s could not be applied; %s: %w", c.What, outcome, err)
	}
	if err = fault.At(ctx, "change: in force"); err == nil {
		err = c.Commit()
	}
	if err != nil {
		err = NotStored(log, c.What+" could not be stored; the change was rolled back", err)
		took, failed := c.ApplyStored()
		if took && failed == nil {
			return nil // the commit had reached the disk after all
		}
		return errors.Join(err, failed)
	}
	fault.Mark(ctx, "change: committed")
	return nil
}

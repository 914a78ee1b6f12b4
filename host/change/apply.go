package change

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/internal/fault"
)

// Change is one change of what boxes may do: of a policy, of header rules, of the protected ranges. All of them are made by
// [Apply].
type Change struct {
	What string // in answers and in the log

	// Stage writes the new state beside the committed one, without effect. The next start drops what is only staged.
	Stage func() error
	// Enforce puts the new state in force. On error it has restored what was in force before, or closed the box.
	Enforce func(context.Context) error
	// Commit makes the staged state the one that a start puts in force, and updates memory.
	Commit func() error
	// Abort forgets what was staged. It is nil for a change that is never rolled back: a failed one is tried again.
	Abort func() error
	// Settle puts in force what the store holds and updates memory, when it is unknown how far the change got. It reports
	// whether that is the new state.
	Settle func() (took bool, err error)
}

// Apply makes a change: stage it on disk, put it in force, commit it. A failure before the commit leaves the old state in
// force and committed. A commit may fail after the new state has reached the disk, and a panic leaves it unknown how far
// the change got: then what the store holds is put in force. Whenever the gateway dies, the next one puts the committed
// state in force.
//
// Once begun, the change runs to its end even if ctx is cancelled. The caller serialises changes of the same kind.
func Apply(ctx context.Context, log *zap.Logger, c Change) error {
	ctx, cancel := Begun(ctx)
	defer cancel()
	var err error
	if panicked := Contain(log, func() error { err = c.run(ctx, log); return nil }, zap.String("change", c.What)); panicked != nil {
		_, failed := c.Settle()
		return api.Errorf(api.ErrUnavailable, "the change may have been rolled back; ask for the present state: %w", errors.Join(panicked, failed))
	}
	return err
}

// run takes the steps of apply.
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
		log.Error("a change could not be put in force; "+outcome, zap.String("change", c.What), zap.Error(err))
		return api.Errorf(api.ErrUnavailable, "%s could not be put in force; %s: %w", c.What, outcome, err)
	}
	if err = fault.At(ctx, "change: in force"); err == nil {
		err = c.Commit()
	}
	if err != nil {
		err = NotStored(log, c.What+" could not be stored; the change was rolled back", err)
		took, failed := c.Settle()
		if took && failed == nil {
			return nil // the commit had reached the disk after all
		}
		return errors.Join(err, failed)
	}
	fault.Mark(ctx, "change: committed")
	return nil
}

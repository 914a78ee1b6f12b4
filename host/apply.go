package host

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/internal/fault"
)

// change is one change of what boxes may do: of a policy, of header rules, of the protected ranges. All of them are made by
// [apply].
type change struct {
	what string // in answers and in the log

	// stage writes the new state beside the committed one, without effect. The next start drops what is only staged.
	stage func() error
	// enforce puts the new state in force. On error it has restored what was in force before, or closed the box.
	enforce func(context.Context) error
	// commit makes the staged state the one that a start puts in force, and updates memory.
	commit func() error
	// abort forgets what was staged. It is nil for a change that is never rolled back: a failed one is tried again.
	abort func() error
	// settle puts in force what the store holds and updates memory, when it is unknown how far the change got. It reports
	// whether that is the new state.
	settle func() (took bool, err error)
}

// apply makes a change: stage it on disk, put it in force, commit it. A failure before the commit leaves the old state in
// force and committed. A commit may fail after the new state has reached the disk, and a panic leaves it unknown how far
// the change got: then what the store holds is put in force. Whenever the gateway dies, the next one puts the committed
// state in force.
//
// Once begun, the change runs to its end even if ctx is cancelled. The caller serialises changes of the same kind.
func apply(ctx context.Context, log *zap.Logger, c change) error {
	ctx, cancel := begun(ctx)
	defer cancel()
	var err error
	if panicked := contained(log, func() error { err = c.run(ctx, log); return nil }, zap.String("change", c.what)); panicked != nil {
		_, failed := c.settle()
		return api.Errorf(api.ErrUnavailable, "the change may have been rolled back; ask for the present state: %w", errors.Join(panicked, failed))
	}
	return err
}

// run takes the steps of apply.
func (c change) run(ctx context.Context, log *zap.Logger) error {
	if err := c.stage(); err != nil {
		return notStored(log, c.what+" could not be stored, nothing was changed", err)
	}
	err := fault.At(ctx, "change: staged")
	if err == nil {
		err = c.enforce(ctx)
	}
	if err != nil {
		outcome := "it will be tried again"
		if c.abort != nil {
			outcome, err = "the change was rolled back", errors.Join(err, c.abort())
		}
		log.Error("a change could not be put in force; "+outcome, zap.String("change", c.what), zap.Error(err))
		return api.Errorf(api.ErrUnavailable, "%s could not be put in force; %s: %w", c.what, outcome, err)
	}
	if err = fault.At(ctx, "change: in force"); err == nil {
		err = c.commit()
	}
	if err != nil {
		err = notStored(log, c.what+" could not be stored; the change was rolled back", err)
		took, failed := c.settle()
		if took && failed == nil {
			return nil // the commit had reached the disk after all
		}
		return errors.Join(err, failed)
	}
	fault.Mark(ctx, "change: committed")
	return nil
}

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

	// stage writes the new state beside the committed one. It is in force for nobody; a start drops it.
	stage func() error
	// enforce puts the new state in force. After an error what was in force before is so again, or boxes are closed.
	enforce func(context.Context) error
	// commit makes the staged state the one that a start puts in force, and takes it over into memory.
	commit func() error
	// abort forgets what was staged.
	abort func() error
	// settle puts in force what the store holds and takes it over into memory, when it is not known how far the change
	// came. It reports whether that is the new state.
	settle func() (took bool, err error)
}

// apply makes a change: stage it on disk, put it in force, commit it. A failure before the commit leaves the old state in
// force and committed. One of the commit itself may come after the new state has reached the disk, and after a panic
// nobody knows how far the change came: then what the store holds is put in force. Whenever the gateway dies, the
// committed state is what the next one puts in force.
//
// Once begun the change goes to its end although ctx is cancelled. The caller holds what serialises changes of its kind.
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
		err = errors.Join(err, c.abort())
		log.Error("a change was rolled back", zap.String("change", c.what), zap.Error(err))
		return api.Errorf(api.ErrUnavailable, "%s could not be put in force; the change was rolled back: %w", c.what, err)
	}
	if err = fault.At(ctx, "change: in force"); err == nil {
		err = c.commit()
	}
	if err != nil {
		err = notStored(log, c.what+" could not be stored; the change was rolled back", err)
		took, failed := c.settle()
		if took && failed == nil {
			return nil // what failed had reached the disk all the same
		}
		return errors.Join(err, failed)
	}
	fault.Mark(ctx, "change: committed")
	return nil
}

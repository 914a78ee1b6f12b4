// Package change makes changes of the permissions of boxes: [Apply] stages a change on disk, applies and commits it, or rolls it
// back. It also has helpers for other operations that must not stop half-way: contexts that outlive the caller ([Detach],
// [DetachRollback]), panics as errors ([Contain]) and rollbacks ([Undo]).
package change

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/internal/fault"
	"boxgate/policy/document"
	"boxgate/store"
	"boxgate/store/history"
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

// ErrFault replaces a panic.
var ErrFault = errors.New("internal error; see the gateway's log")

// Contain converts a panic of f into [ErrFault]. It logs the stack but not the panic value, which may contain a secret.
func Contain(log *zap.Logger, f func() error, about ...zap.Field) (err error) {
	defer func() {
		if v := recover(); v != nil {
			log.Error("panic", append(about, zap.Stack("stack"))...)
			err = ErrFault
		}
	}()
	return f()
}

// changeTimeout is the time limit of a change of one box once it has begun. In a change of all boxes, it applies to each.
const changeTimeout = time.Minute

// Detach returns a context for a change that must not stop half-way because its caller disconnects.
func Detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
}

// restoreTimeout is the time limit of a rollback.
const restoreTimeout = 10 * time.Second

// DetachRollback returns a context for a rollback, which continues even if the failed change was canceled.
func DetachRollback(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), restoreTimeout)
}

// Undo collects the rollbacks of a change's steps.
type Undo []func(context.Context) error

// Add adds the rollback of a step, before the step is taken.
func (u *Undo) Add(f func(context.Context) error) { *u = append(*u, f) }

// Run runs all rollbacks in reverse order, including after one that fails or panics.
func (u Undo) Run(ctx context.Context, log *zap.Logger) error {
	ctx, cancel := DetachRollback(ctx)
	defer cancel()
	var errs []error
	for i := len(u) - 1; i >= 0; i-- {
		errs = append(errs, Contain(log, func() error { return u[i](ctx) }))
	}
	return errors.Join(errs...)
}

// NotStored returns the error for a failed write to the store. what states the outcome; NotStored adds the remedy.
func NotStored(log *zap.Logger, what string, err error) error {
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) {
		return err
	}
	log.Error("the store could not be written", zap.Error(err))
	advice := "see the gateway's log"
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		advice = "the disk of state_dir is full: make room there and try again"
	case errors.Is(err, unix.EROFS):
		advice = "the disk of state_dir can only be read: mount it for writing and try again"
	case errors.Is(err, unix.EIO):
		advice = "the disk of state_dir fails: replace it"
	}
	return &api.Error{Kind: api.ErrUnavailable, Message: what + ": " + advice, Cause: err}
}

// InvalidAt returns the error for one mistake in a request.
func InvalidAt(pointer, message string) error {
	return &document.InvalidError{Problems: []document.Problem{{Pointer: pointer, Message: message}}}
}

// OriginOf returns the origin of a change for the history: the caller of the API whose request ctx belongs to, if there
// is one.
func OriginOf(ctx context.Context, cause history.Cause) history.Origin {
	caller, call := api.CallerOf(ctx), api.CallOf(ctx)
	return history.Origin{At: time.Now(), Cause: cause, KeyID: caller.Key, Key: caller.Name, Role: string(caller.Role), Remote: call.Remote, Call: call.Route}
}

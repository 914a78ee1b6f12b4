package host

import (
	"context"
	"errors"
	"time"
)

// changeTimeout bounds one change of a box, or of all boxes, once it has begun.
const changeTimeout = time.Minute

// restoreTimeout bounds taking a failed change back.
const restoreTimeout = 10 * time.Second

// begun returns a context for a change that must not stop half-way because whoever asked for it has gone.
func begun(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
}

// undo collects what takes back the steps of a change, the last step first.
type undo []func(context.Context) error

func (u *undo) add(f func(context.Context) error) { *u = append(*u, f) }

// run takes everything back. A step that fails does not keep the others from being tried.
func (u *undo) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreTimeout)
	defer cancel()
	var errs []error
	for i := len(*u) - 1; i >= 0; i-- {
		errs = append(errs, (*u)[i](ctx))
	}
	return errors.Join(errs...)
}

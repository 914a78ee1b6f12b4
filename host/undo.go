package host

import (
	"context"
	"errors"

	"go.uber.org/zap"
)

// undo collects how the steps of a change are undone.
type undo []func(context.Context) error

func (u *undo) add(f func(context.Context) error) { *u = append(*u, f) }

// run undoes all steps, the last one first. One that fails or panics does not keep the others from being tried.
func (u undo) run(ctx context.Context, log *zap.Logger) error {
	ctx, cancel := restoring(ctx)
	defer cancel()
	var errs []error
	for i := len(u) - 1; i >= 0; i-- {
		errs = append(errs, contained(log, func() error { return u[i](ctx) }))
	}
	return errors.Join(errs...)
}

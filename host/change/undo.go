package change

import (
	"context"
	"errors"

	"go.uber.org/zap"
)

// Undo collects how the steps of a change are undone.
type Undo []func(context.Context) error

// Add adds how a step is undone, before the step is taken.
func (u *Undo) Add(f func(context.Context) error) { *u = append(*u, f) }

// Run undoes all steps, the last one first. One that fails or panics does not keep the others from being tried.
func (u Undo) Run(ctx context.Context, log *zap.Logger) error {
	ctx, cancel := Restoring(ctx)
	defer cancel()
	var errs []error
	for i := len(u) - 1; i >= 0; i-- {
		errs = append(errs, Contain(log, func() error { return u[i](ctx) }))
	}
	return errors.Join(errs...)
}

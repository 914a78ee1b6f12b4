package change

import (
	"context"
	"errors"

	"go.uber.org/zap"
)

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

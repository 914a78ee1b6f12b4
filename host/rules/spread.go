package rules

import (
	"context"
	"errors"
	"fmt"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/state"
	"boxgate/internal/fault"
)

// spread recompiles and applies the policy of every box after a change of the shared inputs.
func (p *Service) spread(ctx context.Context) error {
	return p.eachConnected(func(b *state.Box) error {
		ctx, cancel := change.Detach(ctx) // one deadline per box, however many there are
		defer cancel()
		err := p.stepOrRestore(b, func() error { return p.recompile(ctx, b) })
		if err != nil {
			return fmt.Errorf("box %s: %w", b.ID, err)
		}
		return nil
	})
}

// recompile compiles a box's policy again and applies it. The caller holds the lock of b.
func (p *Service) recompile(ctx context.Context, b *state.Box) error {
	next, err := p.shared.inputsOf(b).compile()
	if err != nil {
		return err
	}
	if err := fault.At(ctx, "all boxes: next one"); err != nil {
		return err
	}
	return p.Enforce(ctx, b, next)
}

// stepOrRestore runs step for one box of a change of all boxes. After a panic it is unknown how far step got, so the stored
// state of the box is applied. The caller holds the lock of b.
func (p *Service) stepOrRestore(b *state.Box, step func() error) error {
	var err error
	if panicked := p.contain(b, func() error { err = step(); return nil }); panicked != nil {
		return api.Errorf(api.ErrUnavailable, "the change may have been rolled back: %w", errors.Join(panicked, p.applyStored(b)))
	}
	return err
}

// eachConnected calls f with the lock of each box that has a network, and continues after errors. Boxes whose lock is
// held come last, so that the others do not wait for them.
func (p *Service) eachConnected(f func(*state.Box) error) error {
	var errs []error
	next := func(b *state.Box) {
		defer b.Unlock()
		if !b.Deleted && b.Connected() {
			errs = append(errs, f(b))
		}
	}
	var busy []*state.Box
	for _, b := range p.boxes.All() {
		if !b.TryLock() {
			busy = append(busy, b)
			continue
		}
		next(b)
	}
	for _, b := range busy {
		b.Lock()
		next(b)
	}
	return errors.Join(errs...)
}

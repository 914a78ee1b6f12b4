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

// spread puts the policy of every box in force anew, after a change of what all of them share.
func (p *Service) spread(ctx context.Context) error {
	return p.eachConnected(func(b *state.Box) error {
		ctx, cancel := change.Begun(ctx) // however many boxes there are
		defer cancel()
		err := p.guarded(b, func() error { return p.recompile(ctx, b) })
		if err != nil {
			return fmt.Errorf("box %s: %w", b.ID, err)
		}
		return nil
	})
}

// recompile puts the policy of a box in force anew. The caller holds the lock of b.
func (p *Service) recompile(ctx context.Context, b *state.Box) error {
	next, err := p.shared.of(b).compile()
	if err != nil {
		return err
	}
	if err := fault.At(ctx, "all boxes: next one"); err != nil {
		return err
	}
	return p.Enforce(ctx, b, next)
}

// guarded runs the step for one box of a change of all boxes. A panic leaves it unknown how far the step got: then what the
// store holds of the box is put in force. The caller holds the lock of b.
func (p *Service) guarded(b *state.Box, step func() error) error {
	var err error
	if panicked := p.contained(b, func() error { err = step(); return nil }); panicked != nil {
		return api.Errorf(api.ErrUnavailable, "the change may have been rolled back: %w", errors.Join(panicked, p.settle(b)))
	}
	return err
}

// eachConnected calls f for each box that has a network, with its lock held. It goes on after errors. Boxes whose lock is
// taken come last, so that the others do not wait for them.
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

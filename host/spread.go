package host

import (
	"context"
	"errors"
	"fmt"

	"boxgate/api"
	"boxgate/internal/fault"
)

// spread puts the policy of every box in force anew, after a change of what all of them share.
func (p *policies) spread(ctx context.Context) error {
	return p.eachConnected(func(b *box) error {
		ctx, cancel := begun(ctx) // however many boxes there are
		defer cancel()
		err := p.guarded(b, func() error { return p.recompile(ctx, b) })
		if err != nil {
			return fmt.Errorf("box %s: %w", b.ID, err)
		}
		return nil
	})
}

// recompile puts the policy of a box in force anew. The caller holds b.mu.
func (p *policies) recompile(ctx context.Context, b *box) error {
	next, err := p.shared.of(b).compile()
	if err != nil {
		return err
	}
	if err := fault.At(ctx, "all boxes: next one"); err != nil {
		return err
	}
	return p.enforce(ctx, b, next)
}

// guarded runs the step for one box of a change of all boxes. A panic leaves it unknown how far the step got: then what the
// store holds of the box is put in force. The caller holds b.mu.
func (p *policies) guarded(b *box, step func() error) error {
	var err error
	if panicked := p.contained(b, func() error { err = step(); return nil }); panicked != nil {
		return api.Errorf(api.ErrUnavailable, "the change may have been rolled back: %w", errors.Join(panicked, p.settle(b)))
	}
	return err
}

// eachConnected calls f for each box that has a network, with its lock held. It goes on after errors. Boxes whose lock is
// taken come last, so that the others do not wait for them.
func (p *policies) eachConnected(f func(*box) error) error {
	var errs []error
	next := func(b *box) {
		defer b.mu.Unlock()
		if !b.deleted && b.connected() {
			errs = append(errs, f(b))
		}
	}
	var busy []*box
	for _, b := range p.boxes.all() {
		if !b.mu.TryLock() {
			busy = append(busy, b)
			continue
		}
		next(b)
	}
	for _, b := range busy {
		b.mu.Lock()
		next(b)
	}
	return errors.Join(errs...)
}

package firewall

import (
	"context"
	"errors"
	"fmt"

	"boxgate/internal/fault"
	"boxgate/policy"
)

// Apply puts a plan in force for a box: a packet meets the whole old plan or the whole new one, never a mixture, and no
// packet that both allow is lost. The protected ranges are part of the plan. An error means that the old plan is still in
// force. Connections that the new plan refuses lose their next packet; [Firewall.CutFlows] ends them.
func (f *Firewall) Apply(ctx context.Context, id policy.BoxID, plan policy.KernelPlan) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	b, ok := f.boxes[id]
	if !ok {
		return fmt.Errorf("firewall: box %s: %w", id, errUnknownBox)
	}
	// A plan that opens something and protects nothing was not made by a compiler of policies.
	if (plan.DefaultAllow || len(plan.Allowed) > 0) && len(plan.Protected) == 0 {
		return fmt.Errorf("firewall: box %s: the plan protects no address", id)
	}
	err := fault.At(ctx, "plan: to be written")
	if err == nil {
		err = f.replacePlan(ctx, b, plan)
	}
	f.collect()
	if err != nil {
		return fmt.Errorf("firewall: box %s: %w", id, err)
	}
	b.plan = plan
	f.trackBox(b)
	return nil
}

// replacePlan writes a version beside the one in force, and then leads the box's packets to it.
func (f *Firewall) replacePlan(ctx context.Context, b *box, plan policy.KernelPlan) error {
	d, old := f.draft(b.Box, plan), b.live
	if err := errors.Join(f.build(d), fault.At(ctx, "plan: built")); err != nil {
		return err
	}
	if err := f.lead(b, d.version); err != nil {
		return err
	}
	if err := fault.At(ctx, "plan: written"); err != nil {
		return errors.Join(err, f.lead(b, old))
	}
	return nil
}

// Restore writes the table, the routing and every box's rules anew from what this process knows, as after someone else
// has changed them. Boxes are closed while it runs.
func (f *Firewall) Restore(ctx context.Context) error {
	problems, err := f.restore(ctx)
	errs := []error{err}
	for id, problem := range problems {
		errs = append(errs, fmt.Errorf("firewall: restore box %s: %w", id, problem))
	}
	return errors.Join(errs...)
}

// restore returns what went wrong for single boxes, and an error if what they share could not be restored.
func (f *Firewall) restore(ctx context.Context) (map[policy.BoxID]error, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, errors.New("firewall: closed")
	}
	steps := []func() error{func() error { return f.install(false) }, f.setAddresses, f.setRouting, f.awaitAddresses,
		f.setSysctls}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, fmt.Errorf("firewall: restore: %w", err)
		}
	}
	problems := map[policy.BoxID]error{}
	for id, b := range f.boxes {
		if err := f.restoreBox(ctx, b); err != nil {
			problems[id] = err
		}
	}
	return problems, nil
}

// restoreBox writes the plan of a box and what makes its interface known. Where the table is new, that is the first its
// rules hear of the box.
func (f *Firewall) restoreBox(ctx context.Context, b *box) error {
	defer f.collect()
	d := f.draft(b.Box, b.plan)
	if err := f.build(d); err != nil {
		return err
	}
	if err := f.lead(b, d.version, func(t *txn) { t.register(b.registration) }); err != nil {
		return err
	}
	index, err := f.attach(ctx, b)
	if err != nil {
		return err
	}
	b.index = index
	f.trackBox(b)
	return nil
}

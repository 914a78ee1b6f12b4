package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"

	"boxgate/internal/fault"
	"boxgate/policy"
)

// Apply puts a plan in force for a box in one transaction: a packet meets the old plan or the new one, never a mixture,
// and no packet that both allow is lost. The protected ranges hold for all boxes; the plan applied last decides them. An
// error means that the old plan is still in force. Connections that the new plan refuses lose their next packet;
// [Firewall.CutFlows] ends them.
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
	if err := fault.At(ctx, "plan: to be written"); err != nil {
		return fmt.Errorf("firewall: box %s: %w", id, err)
	}
	shield := fmt.Sprint(plan.Protected)
	renew := len(plan.Protected) > 0 && shield != f.shielded
	stamp := newStamp(plan.Version)
	err := f.transact(func(t *txn) {
		if renew {
			t.writeProtected(t.declareSets(), &f.cfg, plan.Protected)
		}
		t.writePlan(id, plan, stamp)
	}, func(c *nftables.Conn) (bool, error) { return stamped(c, b.chain, stamp) })
	if err != nil {
		return fmt.Errorf("firewall: box %s: %w", id, err)
	}
	if renew {
		f.shielded = shield
	}
	b.plan = plan
	f.trackBox(b)
	if err := errors.Join(fault.At(ctx, "plan: written"), f.verify(b, renew)); err != nil {
		return fmt.Errorf("firewall: box %s is closed: %w", id, errors.Join(err, f.closeBox(b)))
	}
	return nil
}

// closeBox refuses everything: what the kernel holds is not what was asked for.
func (f *Firewall) closeBox(b *box) error {
	stamp := newStamp(0)
	b.plan = policy.KernelPlan{}
	return f.transact(func(t *txn) { t.writePlan(b.Box, b.plan, stamp) },
		func(c *nftables.Conn) (bool, error) { return stamped(c, b.chain, stamp) })
}

// verify reads large sets back: a message that is too long loses elements without an error.
func (f *Firewall) verify(b *box, shield bool) error {
	want := map[string]int{}
	for _, fam := range families {
		want[boxChain(b.Box)+"_allow"+fam.suffix()] = len(intervals(spans(fam, b.plan.Allowed)))
		want[boxChain(b.Box)+"_deny"+fam.suffix()] = len(intervals(spans(fam, b.plan.Denied)))
		if shield {
			all := append([]netip.Prefix{f.cfg.PoolV4, f.cfg.PoolV6}, b.plan.Protected...)
			want["protected"+fam.suffix()] = len(intervals(spans(fam, all)))
		}
	}
	var errs []error
	for name, n := range want {
		if n > elementsPerMessage {
			errs = append(errs, f.countElements(name, n))
		}
	}
	return errors.Join(errs...)
}

func (f *Firewall) countElements(set string, want int) error {
	c, err := f.connection()
	if err != nil {
		return err
	}
	got, err := c.GetSetElements(&nftables.Set{Table: table(), Name: set})
	if err != nil {
		return fmt.Errorf("nftables: set %s: %w", set, err)
	}
	if len(got) != want {
		return fmt.Errorf("nftables: set %s holds %d of %d elements", set, len(got), want)
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
	f.shielded, f.leftover = "", map[policy.BoxID]registration{}
	problems := map[policy.BoxID]error{}
	for id, b := range f.boxes {
		if err := f.restoreBox(ctx, b); err != nil {
			problems[id] = err
		}
	}
	return problems, nil
}

func (f *Firewall) restoreBox(ctx context.Context, b *box) error {
	stamp := newStamp(b.plan.Version)
	err := f.transact(func(t *txn) {
		s := t.declareSets()
		if len(b.plan.Protected) > 0 {
			t.writeProtected(s, &f.cfg, b.plan.Protected)
		}
		t.writePlan(b.Box, b.plan, stamp)
		t.register(s, b.registration)
	}, func(c *nftables.Conn) (bool, error) { return stamped(c, b.chain, stamp) })
	if err != nil {
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

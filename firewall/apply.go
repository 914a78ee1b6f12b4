package firewall

import (
	"context"
	"fmt"

	"boxgate/internal/fault"
	"boxgate/policy"
)

// Apply puts a plan in force for a box: a packet meets the whole old plan or the whole new one, never a mixture, and no
// packet that both allow is lost. The protected ranges are part of the plan. On error the old plan is still in force.
// Connections that the new plan refuses lose their next packet; [Firewall.CutFlows] ends them.
func (f *Firewall) Apply(ctx context.Context, id policy.BoxID, plan policy.KernelPlan) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	b, ok := f.boxes.byID[id]
	if !ok {
		return fmt.Errorf("firewall: box %s: %w", id, errUnknownBox)
	}
	// A plan that allows something and protects nothing was not compiled from a policy.
	if (plan.DefaultAllow || len(plan.Allowed) > 0) && len(plan.Protected) == 0 {
		return fmt.Errorf("firewall: box %s: the plan protects no address", id)
	}
	err := fault.At(ctx, "plan: to be written")
	if err == nil {
		err = f.table.Replace(ctx, &b.Entry, plan)
	}
	f.table.Collect()
	if err != nil {
		return fmt.Errorf("firewall: box %s: %w", id, err)
	}
	b.plan = plan
	f.trackBox(b)
	return nil
}

// CutFlows ends the connections that the kernel forwards for the box and for which keep returns false: their next
// packet, from either side, is judged as new by the policy in force. Connections to the proxy and to DNS are not
// included. keep is called once per connection. Once begun it runs to completion: nil means that all of them were cut.
func (f *Firewall) CutFlows(ctx context.Context, id policy.BoxID, keep func(Flow) bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	b, ok := f.boxes.byID[id]
	idle := ok && f.isIdle(b)
	f.mu.Unlock()
	if !ok {
		return fmt.Errorf("firewall: box %s: %w", id, errUnknownBox)
	}
	if idle {
		return nil
	}
	kept, err := f.flows.Cut(b.Mark, b.Sources, keep)
	if err != nil {
		return fmt.Errorf("firewall: box %s: %w", id, err)
	}
	if kept == 0 {
		f.verifyIdle(b)
	}
	return nil
}

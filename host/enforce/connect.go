package enforce

import (
	"context"
	"fmt"

	"boxgate/firewall"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// Interface is the location of a box's interface.
type Interface struct {
	NetNS      string // path of the network namespace
	GuestStack bool   // the box runs its own network stack on the interface
}

// Joining is a box to be connected.
type Joining struct {
	Box      *policy.Box
	At       Interface
	Compiled *policy.Compiled
}

// Connect gives the box a closed interface, registers it with DNS and the proxy, and opens the destinations that its
// policy allows. After an error the caller must call [Enforcer.Disconnect].
func (e *Enforcer) Connect(ctx context.Context, b *policy.Box, at Interface, compiled *policy.Compiled) error {
	return e.ConnectAll(ctx, []Joining{{b, at, compiled}})[0]
}

// ConnectAll connects many boxes, each step for all of them before the next, and returns their errors in the same order.
// A failure of one box may cause errors for others, which succeed if connected one by one.
func (e *Enforcer) ConnectAll(ctx context.Context, list []Joining) []error {
	var attachments []firewall.Attachment
	for _, j := range list {
		e.judged.remove(j.Box.ID) // an earlier run may have accepted connections
		attachments = append(attachments, firewall.Attachment{
			Box: j.Box.ID, NetNS: j.At.NetNS, V4: j.Box.V4, V6: j.Box.V6, GuestStack: j.At.GuestStack, Rates: ratesOf(j.Box.Limits.Load()),
		})
	}
	errs := e.Kernel.AddBoxes(ctx, attachments)
	var plans []firewall.Plan
	var known []int
	for i, j := range list {
		if errs[i] != nil {
			errs[i] = fmt.Errorf("its network: %w", errs[i])
			continue
		}
		j.Box.Policy.Store(j.Compiled)
		e.Boxes.add(j.Box)
		if errs[i] = fault.At(ctx, "connect: known to DNS and proxy"); errs[i] == nil {
			plans, known = append(plans, firewall.Plan{Box: j.Box.ID, KernelPlan: j.Compiled.Kernel()}), append(known, i)
		}
	}
	for n, err := range e.Kernel.ApplyAll(ctx, plans) {
		if err != nil {
			errs[known[n]] = fmt.Errorf("its kernel rules: %w", err)
			continue
		}
		errs[known[n]] = fault.At(ctx, "connect: policy in force")
	}
	return errs
}

// Await returns once the box's first packet would get through.
func (e *Enforcer) Await(ctx context.Context, b *policy.Box) error {
	return e.Kernel.AwaitBox(ctx, b.ID)
}

// Disconnect takes the box off the network: first the policy and the kernel rules, then the state in other parts.
// Leftovers stay closed, since without a policy everything is denied.
func (e *Enforcer) Disconnect(ctx context.Context, b *policy.Box) error {
	b.Policy.Store(nil)
	e.judged.remove(b.ID)
	err := e.Kernel.RemoveBox(ctx, b.ID)
	fault.Mark(ctx, "disconnect: off the network")
	e.Boxes.remove(b)
	e.Proxy.CloseBox(b.ID)
	for _, forget := range e.Forget {
		forget(b.ID)
	}
	return err
}

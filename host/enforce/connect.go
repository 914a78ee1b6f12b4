package enforce

import (
	"context"
	"fmt"

	"boxgate/firewall"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// Interface says where a box gets its interface.
type Interface struct {
	NetNS      string // path of the network namespace
	GuestStack bool   // the box speaks on the interface with a network stack of its own
}

// Joining is a box that gets its network.
type Joining struct {
	Box      *policy.Box
	At       Interface
	Compiled *policy.Compiled
}

// Connect gives the box its interface, closed, makes it known to DNS and proxy, and opens what its policy allows. After an
// error the caller must [Enforcer.Disconnect] it.
func (e *Enforcer) Connect(ctx context.Context, b *policy.Box, at Interface, compiled *policy.Compiled) error {
	return e.ConnectAll(ctx, []Joining{{b, at, compiled}})[0]
}

// ConnectAll does so for many boxes, each step for all of them before the next, and returns the errors in their order. A
// failure of one may be another's as well: connected one by one, only those fail that must.
func (e *Enforcer) ConnectAll(ctx context.Context, list []Joining) []error {
	var attachments []firewall.Attachment
	for _, j := range list {
		e.judged.take(j.Box.ID) // an earlier run may have let connections through
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

// Await returns once no first packet of the box would be lost.
func (e *Enforcer) Await(ctx context.Context, b *policy.Box) error {
	return e.Kernel.AwaitBox(ctx, b.ID)
}

// Disconnect takes the box off the network: the policy and the kernel first, then every part that remembers the box. What
// cannot be removed stays closed, since without a policy everything is denied.
func (e *Enforcer) Disconnect(ctx context.Context, b *policy.Box) error {
	b.Policy.Store(nil)
	e.judged.take(b.ID)
	err := e.Kernel.RemoveBox(ctx, b.ID)
	fault.Mark(ctx, "disconnect: off the network")
	e.Boxes.remove(b)
	e.Proxy.CloseBox(b.ID)
	for _, forget := range e.Forget {
		forget(b.ID)
	}
	return err
}

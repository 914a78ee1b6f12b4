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

// Connect gives the box its interface, closed, makes it known to DNS and proxy, and opens what its policy allows. After an
// error the caller must [Enforcer.Disconnect] it.
func (e *Enforcer) Connect(ctx context.Context, b *policy.Box, at Interface, compiled *policy.Compiled) error {
	e.judged.take(b.ID) // an earlier run may have let connections through
	err := e.Kernel.AddBox(ctx, firewall.Attachment{Box: b.ID, NetNS: at.NetNS, V4: b.V4, V6: b.V6, GuestStack: at.GuestStack})
	if err != nil {
		return fmt.Errorf("its network: %w", err)
	}
	b.Policy.Store(compiled)
	e.Boxes.add(b)
	if err := fault.At(ctx, "connect: known to DNS and proxy"); err != nil {
		return err
	}
	if err := e.Kernel.Apply(ctx, b.ID, compiled.Kernel()); err != nil {
		return fmt.Errorf("its kernel rules: %w", err)
	}
	return fault.At(ctx, "connect: policy in force")
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

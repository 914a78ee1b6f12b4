package host

import (
	"context"
	"fmt"

	"boxgate/firewall"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// connect attaches the box's interface, closed, makes the box known to DNS and proxy, and opens what its policy allows.
func (h *Host) connect(ctx context.Context, b *box, compiled *policy.Compiled, netns string, back *undo) error {
	back.add(func(ctx context.Context) error { return h.disconnect(ctx, b) })
	err := h.firewall.AddBox(ctx, firewall.Attachment{
		Box: b.ID, NetNS: netns, V4: b.V4, V6: b.V6, GuestStack: b.hasGuestStack(),
	})
	if err != nil {
		return fmt.Errorf("its network: %w", err)
	}
	b.Policy.Store(compiled)
	h.registry.add(&b.Box)
	if err := fault.At(ctx, "connect: known to DNS and proxy"); err != nil {
		return err
	}
	if err := h.firewall.Apply(ctx, b.ID, compiled.Kernel()); err != nil {
		return fmt.Errorf("its kernel rules: %w", err)
	}
	b.connected = true
	return fault.At(ctx, "connect: policy in force")
}

// disconnect takes the box off the network: the policy and the kernel first, then everything that remembers the box.
// What could not be taken away is closed: without a policy everything is denied.
func (h *Host) disconnect(ctx context.Context, b *box) error {
	b.Policy.Store(nil)
	b.connected = false
	err := h.firewall.RemoveBox(ctx, b.ID)
	fault.Mark(ctx, "disconnect: off the network")
	h.registry.remove(&b.Box)
	h.proxy.CloseBox(b.ID)
	h.dns.Forget(b.ID)
	h.minter.Remove(b.ID)
	return err
}

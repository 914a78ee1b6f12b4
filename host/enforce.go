package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"boxgate/firewall"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// enforce puts next in force everywhere for one box and returns when it is: the kernel, the pointer that DNS and proxy
// read, the connections that are open. When it tightens, the kernel goes first; when it loosens, last; so at no moment
// is anything open that neither the old nor the new policy opens. An error leaves the old policy in force.
//
// A box without network has nothing to enforce: its change counts once it is connected.
func (h *Host) enforce(ctx context.Context, b *box, next *policy.Compiled) error {
	if !b.connected {
		return nil
	}
	old := b.Policy.Load()
	if loosens(old.Kernel(), next.Kernel()) {
		b.Policy.Store(next)
		if err := h.firewall.Apply(ctx, b.ID, next.Kernel()); err != nil {
			return errors.Join(fmt.Errorf("kernel rules: %w", err), h.restore(b, old))
		}
	} else {
		if err := h.firewall.Apply(ctx, b.ID, next.Kernel()); err != nil {
			return errors.Join(fmt.Errorf("kernel rules: %w", err), h.restore(b, old))
		}
		b.Policy.Store(next)
	}
	if err := fault.At(ctx, "enforce: kernel and pointer changed"); err != nil {
		return errors.Join(err, h.restore(b, old))
	}
	h.proxy.Recheck(b.ID)
	if err := errors.Join(fault.At(ctx, "enforce: connections asked again"), h.cutFlows(ctx, b)); err != nil {
		return errors.Join(fmt.Errorf("cutting connections: %w", err), h.restore(b, old))
	}
	return nil
}

// restore puts the old policy back after a failure. A request's cancelled context must not stop it. If the kernel does
// not take it, it may still hold the new one: then the box is taken off the network.
func (h *Host) restore(b *box, old *policy.Compiled) error {
	if !b.connected {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), restoreTimeout)
	defer cancel()
	b.Policy.Store(old)
	err := h.firewall.Apply(ctx, b.ID, old.Kernel())
	h.proxy.Recheck(b.ID)
	if err != nil {
		return errors.Join(fmt.Errorf("putting the old rules back: %w", err), h.shut(b))
	}
	return h.cutFlows(ctx, b)
}

// cutFlows deletes the kernel's connections of a box that its policy denies by now, or that now belong to the proxy.
func (h *Host) cutFlows(ctx context.Context, b *box) error {
	c := b.Policy.Load()
	plan := c.Kernel()
	return h.firewall.CutFlows(ctx, b.ID, func(f firewall.Flow) bool {
		if f.Protocol == policy.TCP && plan.SteerAllowed.Contains(f.Dst.Port()) {
			return false
		}
		if f.Protocol == policy.UDP && plan.RejectUDP.Contains(f.Dst.Port()) {
			return false
		}
		return c.Decide(policy.Request{
			Stage: policy.StageKernel, Box: b.ID, Addr: f.Dst.Addr(), Port: f.Dst.Port(), Protocol: f.Protocol,
		}).Allowed()
	})
}

// loosens reports whether whatever the old plan forwards in the kernel, the new one forwards too.
func loosens(old, next policy.KernelPlan) bool {
	wider := next.DefaultAllow || !old.DefaultAllow && covers(next.Allowed, old.Allowed)
	return wider && covers(old.Denied, next.Denied) && covers(old.Protected, next.Protected) &&
		portsWithin(next.SteerAllowed, old.SteerAllowed) && portsWithin(next.RejectUDP, old.RejectUDP)
}

// covers reports whether every prefix of inner lies within one of outer.
func covers(outer, inner []netip.Prefix) bool {
	return !slices.ContainsFunc(inner, func(p netip.Prefix) bool {
		return !slices.ContainsFunc(outer, func(o netip.Prefix) bool {
			return o.Bits() <= p.Bits() && o.Contains(p.Addr())
		})
	})
}

// portsWithin reports whether every port of inner is in outer.
func portsWithin(inner, outer policy.PortSet) bool {
	if outer.All {
		return true
	}
	return !inner.All && !slices.ContainsFunc(inner.Ports, func(p uint16) bool { return !outer.Contains(p) })
}

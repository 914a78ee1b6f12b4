// Package enforce puts a compiled policy in force for one box: in the kernel, for DNS and the proxy, and for the
// connections that are open. It gives a box its network and takes it away.
//
// Calls for one box must not overlap: its caller holds a lock for each box. A box without a policy has no network.
package enforce

import (
	"context"
	"errors"
	"fmt"
	"time"

	"boxgate/firewall"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// Kernel is what the enforcer needs of [firewall.Firewall].
type Kernel interface {
	AddBoxes(ctx context.Context, list []firewall.Attachment) []error
	AwaitBox(ctx context.Context, id policy.BoxID) error
	Apply(ctx context.Context, id policy.BoxID, plan policy.KernelPlan) error
	ApplyAll(ctx context.Context, plans []firewall.Plan) []error
	CutFlows(ctx context.Context, id policy.BoxID, keep func(firewall.Flow) bool) error
	CutAllFlows(ctx context.Context, keep func(policy.BoxID, firewall.Flow) bool) error
	RemoveBox(ctx context.Context, id policy.BoxID) error
	SetRates(ctx context.Context, id policy.BoxID, rates firewall.Rates) error
}

// Proxy is what the enforcer needs of [boxgate/proxy.Proxy].
type Proxy interface {
	// Recheck returns once every connection that the policy now denies has ended.
	Recheck(id policy.BoxID)
	CloseBox(id policy.BoxID)
}

// Enforcer puts policies in force. All exported fields must be set.
type Enforcer struct {
	Kernel Kernel
	Proxy  Proxy
	Boxes  *Registry               // of those that have a network
	Forget []func(id policy.BoxID) // told when a box has lost its network

	judged judged
}

// ErrClosed says that neither the new policy nor the old one could be put in force, so that the box was taken off the
// network.
var ErrClosed = errors.New("the box was taken off the network")

// restoreTimeout bounds a rollback.
const restoreTimeout = 10 * time.Second

// Enforce puts next in force everywhere and returns when it is: the kernel, the pointer that DNS and proxy read, the
// connections that are open. When it tightens, the kernel goes first; when it loosens, last; so at no moment is anything
// open that neither the old nor the new policy opens. An error leaves the old policy in force, or the box closed
// ([ErrClosed]).
//
// A box without network has nothing to enforce.
func (e *Enforcer) Enforce(ctx context.Context, b *policy.Box, next *policy.Compiled) error {
	old := b.Policy.Load()
	if old == nil {
		return nil
	}
	if err := e.swap(ctx, b, old, next); err != nil {
		err = errors.Join(err, e.Restore(b, old))
		if old.Source() != next.Source() && b.Policy.Load() != nil { // some may leave from the new addresses
			ctx, cancel := context.WithTimeout(context.Background(), restoreTimeout)
			defer cancel()
			err = errors.Join(err, e.cutFlows(ctx, b, func(firewall.Flow) bool { return false }))
		}
		return err
	}
	return nil
}

// swap is Enforce without the rollback.
func (e *Enforcer) swap(ctx context.Context, b *policy.Box, old, next *policy.Compiled) error {
	looser := policy.Loosens(old.Kernel(), next.Kernel())
	judged := e.judged.take(b.ID)
	if looser {
		b.Policy.Store(next)
	}
	if err := e.Kernel.Apply(ctx, b.ID, next.Kernel()); err != nil {
		return fmt.Errorf("kernel rules: %w", err)
	}
	if !looser {
		b.Policy.Store(next)
	}
	if err := fault.At(ctx, "enforce: kernel and pointer changed"); err != nil {
		return err
	}
	e.Proxy.Recheck(b.ID)
	if err := fault.At(ctx, "enforce: connections asked again"); err != nil {
		return err
	}
	if looser && judged { // nothing is forwarded that would be denied now
		e.judged.add(b.ID)
		return nil
	}
	if old.Source() != next.Source() {
		return e.cutFlows(ctx, b, func(firewall.Flow) bool { return false }) // whichever address they leave from
	}
	return e.CutFlows(ctx, b)
}

// Restore puts a policy in force after a failure. A request's cancelled context must not stop it. If the kernel does not
// take it, it may still hold another: then the box is taken off the network.
func (e *Enforcer) Restore(b *policy.Box, old *policy.Compiled) error {
	if b.Policy.Load() == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), restoreTimeout)
	defer cancel()
	e.judged.take(b.ID)
	b.Policy.Store(old)
	err := e.Kernel.Apply(ctx, b.ID, old.Kernel())
	e.Proxy.Recheck(b.ID)
	if err != nil {
		return errors.Join(fmt.Errorf("restoring the kernel rules: %w", err), ErrClosed, e.Disconnect(ctx, b))
	}
	return e.CutFlows(ctx, b)
}

// forwards reports whether the kernel goes on to forward a connection under the policy: one that it would forward now, from
// the same address of the host.
func forwards(c *policy.Compiled, f firewall.Flow) bool {
	from, ok := c.Source().For(f.Dst.Addr())
	return ok && (!from.IsValid() || from == f.From) && c.Forwards(f.Dst.Addr(), f.Dst.Port(), f.Protocol)
}

// CutFlows deletes the connections of a box that the kernel forwards although the policy in force denies them, gives
// them to the proxy, or has them leave from another address.
func (e *Enforcer) CutFlows(ctx context.Context, b *policy.Box) error {
	c := b.Policy.Load()
	return e.cutFlows(ctx, b, func(f firewall.Flow) bool { return forwards(c, f) })
}

func (e *Enforcer) cutFlows(ctx context.Context, b *policy.Box, keep func(firewall.Flow) bool) error {
	err := e.Kernel.CutFlows(ctx, b.ID, keep)
	if err != nil {
		return fmt.Errorf("cutting connections: %w", err)
	}
	e.judged.add(b.ID)
	return nil
}

// CutAllFlows does what CutFlows does for many boxes, and reads the connection table once for that.
func (e *Enforcer) CutAllFlows(ctx context.Context, boxes []*policy.Box) error {
	policies := map[policy.BoxID]*policy.Compiled{}
	for _, b := range boxes {
		policies[b.ID] = b.Policy.Load()
	}
	err := e.Kernel.CutAllFlows(ctx, func(id policy.BoxID, f firewall.Flow) bool {
		c, asked := policies[id]
		return !asked || forwards(c, f)
	})
	if err != nil {
		return fmt.Errorf("cutting connections: %w", err)
	}
	for _, b := range boxes {
		e.judged.add(b.ID)
	}
	return nil
}

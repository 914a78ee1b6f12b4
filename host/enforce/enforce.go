// Package enforce applies a compiled policy to a box: in the kernel, for DNS and the proxy, and to open connections. It
// also connects boxes to the network and disconnects them.
//
// Calls for the same box must not overlap, except for Suspend: the caller holds the box's lock. A box without a policy is disconnected.
package enforce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"boxgate/firewall"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// Kernel is the part of [firewall.Firewall] that the enforcer uses.
type Kernel interface {
	AddBoxes(ctx context.Context, list []firewall.Attachment) []error
	AwaitBox(ctx context.Context, id policy.BoxID) error
	Apply(ctx context.Context, id policy.BoxID, plan policy.KernelPlan) error
	ApplyAll(ctx context.Context, plans []firewall.Plan) []error
	CutFlows(ctx context.Context, id policy.BoxID, keep func(firewall.Flow) bool) error
	CutAllFlows(ctx context.Context, keep func(policy.BoxID, firewall.Flow) bool) error
	// RemoveBox retries a failed removal by itself until it succeeds or the box is added again.
	RemoveBox(ctx context.Context, id policy.BoxID) error
	Suspend(ctx context.Context, id policy.BoxID) error
	Resume(ctx context.Context, id policy.BoxID) error
	SetRates(ctx context.Context, id policy.BoxID, rates firewall.Rates) error
}

// Proxy is the part of [boxgate/proxy.Proxy] that the enforcer uses.
type Proxy interface {
	// Recheck returns once every connection that the policy now denies has been closed.
	Recheck(id policy.BoxID)
	CloseBox(id policy.BoxID)
}

// Enforcer applies policies. All exported fields must be set.
type Enforcer struct {
	Kernel Kernel
	Proxy  Proxy
	Boxes  *Registry               // the connected boxes
	Forget []func(id policy.BoxID) // called after a box was disconnected

	judged judged
	remote remote
}

// ErrClosed means that neither the new policy nor the old one could be applied, so the box was disconnected.
var ErrClosed = errors.New("the box was taken off the network")

// restoreTimeout is the time limit of a rollback.
const restoreTimeout = 10 * time.Second

// Enforce applies next to the kernel, to the pointer that DNS and proxy read, and to open connections, and then returns.
// When the policy tightens, the kernel goes first; when it loosens, last; so at no moment is anything open that neither
// policy allows. On an error the old policy stays applied, or the box is closed ([ErrClosed]).
//
// For a disconnected box, Enforce is a no-op.
func (e *Enforcer) Enforce(ctx context.Context, b *policy.Box, next *policy.Compiled) error {
	old := b.Policy.Load()
	if old == nil {
		return nil
	}
	if err := e.swap(ctx, b, old, next); err != nil {
		err = errors.Join(err, e.Restore(b, old))
		if old.Source() != next.Source() && b.Policy.Load() != nil { // some connections may use the new source addresses
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
	judged := e.judged.remove(b.ID)
	if looser {
		b.Policy.Store(next)
	}
	if err := e.kernel(b.ID).Apply(ctx, b.ID, next.Kernel()); err != nil {
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
	if looser && judged { // no forwarded connection is denied by the looser policy
		e.judged.add(b.ID)
		return nil
	}
	if old.Source() != next.Source() {
		return e.cutFlows(ctx, b, func(firewall.Flow) bool { return false }) // any of them may use the old source address
	}
	return e.CutFlows(ctx, b)
}

// Restore applies a policy after a failure, regardless of the request's context. If the kernel rejects it, another policy
// may still be in the kernel, so the box is disconnected.
func (e *Enforcer) Restore(b *policy.Box, old *policy.Compiled) error {
	if b.Policy.Load() == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), restoreTimeout)
	defer cancel()
	e.judged.remove(b.ID)
	b.Policy.Store(old)
	err := e.kernel(b.ID).Apply(ctx, b.ID, old.Kernel())
	e.Proxy.Recheck(b.ID)
	if err != nil {
		return errors.Join(fmt.Errorf("restoring the kernel rules: %w", err), ErrClosed, e.Disconnect(ctx, b))
	}
	return e.CutFlows(ctx, b)
}

// forwards reports whether the kernel may continue to forward a connection under the policy: it would forward it as a new
// one too, and from the same source address.
func forwards(c *policy.Compiled, f firewall.Flow) bool {
	from, ok := c.Source().For(f.Dst.Addr())
	return ok && (!from.IsValid() || from == f.From) && c.Forwards(f.Dst.Addr(), f.Dst.Port(), f.Protocol)
}

// CutFlows deletes the forwarded connections of a box that the current policy denies, sends through the proxy, or sends
// from another source address.
func (e *Enforcer) CutFlows(ctx context.Context, b *policy.Box) error {
	c := b.Policy.Load()
	return e.cutFlows(ctx, b, func(f firewall.Flow) bool { return forwards(c, f) })
}

func (e *Enforcer) cutFlows(ctx context.Context, b *policy.Box, keep func(firewall.Flow) bool) error {
	err := e.kernel(b.ID).CutFlows(ctx, b.ID, keep)
	if err != nil {
		return fmt.Errorf("cutting connections: %w", err)
	}
	e.judged.add(b.ID)
	return nil
}

// CutAllFlows is CutFlows for many boxes. It reads the connection table only once.
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

// Interface is the location of a box's interface.
type Interface struct {
	NetNS      string // path of the network namespace
	GuestStack bool   // the box runs its own network stack on the interface
	Tap        *firewall.Tap
	Remote     bool // the box has no interface: its connections come through the remote listener only
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
	var linked []int // positions in list
	for i, j := range list {
		e.judged.remove(j.Box.ID) // an earlier run may have accepted connections
		if j.At.Remote {
			e.remote.add(j.Box)
			continue
		}
		linked = append(linked, i)
		attachments = append(attachments, firewall.Attachment{
			Box: j.Box.ID, NetNS: j.At.NetNS, V4: j.Box.V4, V6: j.Box.V6, GuestStack: j.At.GuestStack, Tap: j.At.Tap, Rates: ratesOf(j.Box.Limits.Load()),
		})
	}
	errs := make([]error, len(list))
	for n, err := range e.Kernel.AddBoxes(ctx, attachments) {
		errs[linked[n]] = err
	}
	var plans []firewall.Plan
	var known []int
	for i, j := range list {
		if errs[i] != nil {
			errs[i] = fmt.Errorf("its network: %w", errs[i])
			continue
		}
		j.Box.Policy.Store(j.Compiled)
		e.Boxes.add(j.Box)
		if errs[i] = fault.At(ctx, "connect: known to DNS and proxy"); errs[i] == nil && !j.At.Remote {
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
	return e.kernel(b.ID).AwaitBox(ctx, b.ID)
}

// Disconnect takes the box off the network: first the policy and the kernel rules, then the state in other parts.
// Leftovers stay closed for DNS and the proxy, since without a policy everything is denied; the kernel retries its part.
func (e *Enforcer) Disconnect(ctx context.Context, b *policy.Box) error {
	b.Policy.Store(nil)
	e.judged.remove(b.ID)
	err := e.kernel(b.ID).RemoveBox(ctx, b.ID)
	fault.Mark(ctx, "disconnect: off the network")
	e.Boxes.remove(b)
	e.remote.remove(b.ID)
	e.Proxy.CloseBox(b.ID)
	for _, forget := range e.Forget {
		forget(b.ID)
	}
	return err
}

// Suspend takes a box off the network without changing its policy. It needs no lock of the box: it is for a policy that
// must not stay in force while another change holds that lock. The caller calls Resume once it has the lock and has applied
// another policy.
func (e *Enforcer) Suspend(ctx context.Context, id policy.BoxID) error {
	if e.remote.suspend(id, e.Boxes) {
		e.Proxy.CloseBox(id)
		return nil
	}
	return e.Kernel.Suspend(ctx, id)
}

// Resume ends Suspend. After an error the box stays off the network.
func (e *Enforcer) Resume(ctx context.Context, id policy.BoxID) error {
	if e.remote.resume(id, e.Boxes) {
		return nil
	}
	return e.Kernel.Resume(ctx, id)
}

// Registry maps source addresses to boxes, for DNS and the proxy. A box is added once it has its closed interface, and
// removed once the interface is gone. The zero value is empty. Safe for concurrent use.
type Registry struct {
	mu     sync.RWMutex
	byAddr map[netip.Addr]*policy.Box
}

// BoxByAddr returns the box with an address, or nil.
func (r *Registry) BoxByAddr(a netip.Addr) *policy.Box {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byAddr[a.Unmap().WithZone("")]
}

// add adds the box under both its addresses.
func (r *Registry) add(b *policy.Box) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byAddr == nil {
		r.byAddr = map[netip.Addr]*policy.Box{}
	}
	for _, a := range []netip.Addr{b.V4, b.V6} {
		if a.IsValid() {
			r.byAddr[a] = b
		}
	}
}

// remove removes the box.
func (r *Registry) remove(b *policy.Box) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byAddr, b.V4)
	delete(r.byAddr, b.V6)
}

// judged is the set of boxes whose forwarded connections are all known to be forwarded by the current policy. A box is
// removed before its policy changes, and added again once its connections have been checked. After a failed change the
// box is missing, so the next change checks for connections that were accepted in between. The zero value is empty. Safe
// for concurrent use.
type judged struct {
	mu    sync.Mutex
	boxes map[policy.BoxID]bool
}

func (j *judged) add(id policy.BoxID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.boxes == nil {
		j.boxes = map[policy.BoxID]bool{}
	}
	j.boxes[id] = true
}

// remove removes the box, and reports whether it was in the set.
func (j *judged) remove(id policy.BoxID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	was := j.boxes[id]
	delete(j.boxes, id)
	return was
}

// Limit applies limits to a box, in the kernel, DNS and the proxy, and then returns. On an error the previous limits
// stay. given are the limits set by the operator, which cap the box's own.
func (e *Enforcer) Limit(ctx context.Context, b *policy.Box, own, given policy.Limits) error {
	if b.Policy.Load() != nil { // otherwise Connect sets its rates
		rates := ratesOf(own)
		rates.MaxSend = given[policy.LimitSend]
		if err := e.kernel(b.ID).SetRates(ctx, b.ID, rates); err != nil {
			return fmt.Errorf("its rates: %w", err)
		}
	}
	b.Limits.Store(own)
	return nil
}

func ratesOf(own policy.Limits) firewall.Rates {
	return firewall.Rates{Send: own[policy.LimitSend], Receive: own[policy.LimitReceive]}
}

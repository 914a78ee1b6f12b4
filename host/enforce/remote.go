package enforce

import (
	"context"
	"sync"

	"boxgate/firewall"
	"boxgate/policy"
)

// remote is the set of connected boxes without an interface. Their connections enter the proxy through the remote listener, so
// there are no kernel rules to change for them. The zero value is empty. Safe for concurrent use.
type remote struct {
	mu    sync.Mutex
	boxes map[policy.BoxID]*policy.Box
}

func (r *remote) add(b *policy.Box) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.boxes == nil {
		r.boxes = map[policy.BoxID]*policy.Box{}
	}
	r.boxes[b.ID] = b
}

func (r *remote) remove(id policy.BoxID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.boxes, id)
}

func (r *remote) has(id policy.BoxID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.boxes[id] != nil
}

// suspend hides a remote box from the proxy, so that it accepts no connection of the box. It returns false for another box.
func (r *remote) suspend(id policy.BoxID, from *Registry) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.boxes[id]
	if b != nil {
		from.remove(b)
	}
	return b != nil
}

// resume ends suspend. It returns false for another box.
func (r *remote) resume(id policy.BoxID, to *Registry) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.boxes[id]
	if b != nil {
		to.add(b)
	}
	return b != nil
}

// kernel returns the kernel rules of a box.
func (e *Enforcer) kernel(id policy.BoxID) Kernel {
	if e.remote.has(id) {
		return noKernel{}
	}
	return e.Kernel
}

// noKernel is the [Kernel] of a box without an interface. The methods that concern many boxes are never called.
type noKernel struct{ Kernel }

// AwaitBox implements [Kernel].
func (noKernel) AwaitBox(context.Context, policy.BoxID) error { return nil }

// Apply implements [Kernel].
func (noKernel) Apply(context.Context, policy.BoxID, policy.KernelPlan) error { return nil }

// CutFlows implements [Kernel].
func (noKernel) CutFlows(context.Context, policy.BoxID, func(firewall.Flow) bool) error { return nil }

// RemoveBox implements [Kernel].
func (noKernel) RemoveBox(context.Context, policy.BoxID) error { return nil }

// SetRates implements [Kernel]: the remote listener reads the rates for each transfer.
func (noKernel) SetRates(context.Context, policy.BoxID, firewall.Rates) error { return nil }

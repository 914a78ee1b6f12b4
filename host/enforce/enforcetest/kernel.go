// Package enforcetest provides a kernel and a proxy without effect, for tests.
package enforcetest

import (
	"context"
	"errors"
	"sync/atomic"

	"boxgate/firewall"
	"boxgate/policy"
)

// Kernel accepts every plan for which Before, if set, returns no error. Cut, if set, is called to cut the connections of a box.
// Seen, if set, is called with the context of each call.
type Kernel struct {
	Before func(policy.BoxID, policy.KernelPlan) error
	Cut    func(policy.BoxID) error
	Seen   func(context.Context)

	Suspended atomic.Int64 // calls of Suspend that succeeded minus calls of Resume
	Refused   atomic.Int64 // how many of the next calls of Suspend and Resume fail
}

var errRefused = errors.New("refused")

func (k *Kernel) Suspend(context.Context, policy.BoxID) error {
	if k.Refused.Add(-1) >= 0 {
		return errRefused
	}
	k.Suspended.Add(1)
	return nil
}

func (k *Kernel) Resume(context.Context, policy.BoxID) error {
	k.Suspended.Add(-1)
	if k.Refused.Add(-1) >= 0 {
		return errRefused
	}
	return nil
}

func (k *Kernel) Apply(ctx context.Context, id policy.BoxID, plan policy.KernelPlan) error {
	if k.Seen != nil {
		k.Seen(ctx)
	}
	if k.Before == nil {
		return nil
	}
	return k.Before(id, plan)
}

func (k *Kernel) SetRates(context.Context, policy.BoxID, firewall.Rates) error { return nil }

func (k *Kernel) ApplyAll(ctx context.Context, plans []firewall.Plan) (errs []error) {
	for _, p := range plans {
		errs = append(errs, k.Apply(ctx, p.Box, p.KernelPlan))
	}
	return errs
}

func (*Kernel) AddBoxes(_ context.Context, list []firewall.Attachment) []error {
	return make([]error, len(list))
}
func (*Kernel) AwaitBox(context.Context, policy.BoxID) error  { return nil }
func (*Kernel) RemoveBox(context.Context, policy.BoxID) error { return nil }
func (*Kernel) CutAllFlows(context.Context, func(policy.BoxID, firewall.Flow) bool) error {
	return nil
}

func (k *Kernel) CutFlows(_ context.Context, id policy.BoxID, _ func(firewall.Flow) bool) error {
	if k.Cut == nil {
		return nil
	}
	return k.Cut(id)
}

// Proxy has no connections.
type Proxy struct{}

func (Proxy) Recheck(policy.BoxID)  {}
func (Proxy) CloseBox(policy.BoxID) {}

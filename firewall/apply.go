package firewall

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"boxgate/firewall/flow"
	"boxgate/firewall/nft"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// Apply applies a plan to a box: each packet meets the whole old plan or the whole new one, never a mixture, and no packet
// that both allow is lost. The protected ranges are part of the plan. On error the old plan stays active. Connections that
// the new plan refuses lose their next packet; [Firewall.CutFlows] cuts them.
func (f *Firewall) Apply(ctx context.Context, id policy.BoxID, plan policy.KernelPlan) error {
	return f.ApplyAll(ctx, []Plan{{id, plan}})[0]
}

// Plan is a new plan for a box.
type Plan struct {
	Box policy.BoxID
	policy.KernelPlan
}

// ApplyAll applies plans to boxes as Apply does, and returns the errors in the same order. One transaction changes many
// boxes: if it fails, all of them get its error and keep their old plans.
func (f *Firewall) ApplyAll(ctx context.Context, plans []Plan) []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	errs := make([]error, 0, len(plans))
	for chunk := range slices.Chunk(plans, boxesPerTransaction) {
		errs = append(errs, f.applyChunk(ctx, chunk)...)
	}
	for i, p := range plans {
		if errs[i] != nil {
			errs[i] = fmt.Errorf("firewall: box %s: %w", p.Box, errs[i])
		}
	}
	return errs
}

// applyChunk is ApplyAll for the boxes of one transaction.
func (f *Firewall) applyChunk(ctx context.Context, chunk []Plan) []error {
	errs := make([]error, len(chunk))
	var changes []nft.Change
	for i, p := range chunk {
		if errs[i] = f.checkPlan(ctx, p); errs[i] == nil {
			changes = append(changes, nft.Change{Entry: &f.boxes.byID[p.Box].Entry, Plan: p.KernelPlan})
		}
	}
	if len(changes) == 0 {
		return errs
	}
	err := fault.At(ctx, "plan: to be written")
	if err == nil {
		err = f.table.Replace(ctx, changes...)
	}
	f.table.Collect()
	for i, p := range chunk {
		if errs[i] != nil {
			continue
		}
		if errs[i] = err; err == nil {
			b := f.boxes.byID[p.Box]
			b.plan = p.KernelPlan
			f.trackBox(b)
		}
	}
	return errs
}

// checkPlan refuses a plan that cannot or must not be applied.
func (f *Firewall) checkPlan(ctx context.Context, p Plan) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, ok := f.boxes.byID[p.Box]; !ok {
		return errUnknownBox
	}
	// A plan that allows something and protects no address was not compiled from a policy.
	if (p.DefaultAllow || len(p.Allowed) > 0) && len(p.Protected) == 0 {
		return errors.New("the plan protects no address")
	}
	return nil
}

// Suspend takes the interface of a box down, so that no packet of the box passes, until [Firewall.Resume]. Repairs do not
// raise it, and a box that is added meanwhile, for the first time too, stays suspended. After an error the interface may be up.
func (f *Firewall) Suspend(_ context.Context, id policy.BoxID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.suspended[id] = true
	b, ok := f.boxes.byID[id]
	if !ok {
		return nil
	}
	if err := f.links.Lower(b.Link); err != nil {
		return fmt.Errorf("firewall: suspend box %s: %w", id, err)
	}
	return nil
}

// Resume ends [Firewall.Suspend]: the box has its network again, under the plan applied last. For a box that is not suspended it
// is a no-op. After an error its interface is down until a repair raises it under that plan.
func (f *Firewall) Resume(ctx context.Context, id policy.BoxID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, ok := f.boxes.byID[id]
	suspended := f.suspended[id]
	delete(f.suspended, id)
	if !ok || !suspended {
		return nil
	}
	if _, failed := f.removing[b.Link]; failed {
		return nil
	}
	if err := f.restoreBox(ctx, b); err != nil {
		return fmt.Errorf("firewall: resume box %s: %w", id, errors.Join(err, f.links.Lower(b.Link)))
	}
	return nil
}

// CutFlows cuts the box's forwarded connections for which keep returns false: the active plan decides about their next
// packet, from either side, as that of a new connection. Connections to the proxy and to DNS are not included. keep is
// called once per connection. Once begun, CutFlows runs to completion; nil means that all of them were cut.
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

// CutAllFlows does the same as CutFlows for all boxes, and reads the connection table only once. keep is called once per
// connection of a box.
func (f *Firewall) CutAllFlows(ctx context.Context, keep func(policy.BoxID, Flow) bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.flows.CutAll(func(owner flow.Owner, seen Flow) bool {
		b := f.boxes.byAddr[owner.Addr]
		return b == nil || b.Mark != owner.Mark || keep(b.Box, seen)
	})
	if err != nil {
		return fmt.Errorf("firewall: %w", err)
	}
	return nil
}

// SetRates changes how much a box may send and receive. When it returns nil, the new limits apply. On error the previous
// limits apply, unless the error reports that restoring them failed.
func (f *Firewall) SetRates(ctx context.Context, id policy.BoxID, rates Rates) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, ok := f.boxes.byID[id]
	if !ok {
		return fmt.Errorf("firewall: rates of box %s: %w", id, errUnknownBox)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	before := b.Rates
	if before == rates {
		return nil
	}
	err := f.setRates(b, rates)
	if err != nil {
		err = fmt.Errorf("firewall: rates of box %s: %w", id, errors.Join(err, f.setRates(b, before)))
	}
	return err
}

func (f *Firewall) setRates(b *box, rates Rates) error {
	if b.SendRate != rates.Send || b.MaxSend != rates.MaxSend {
		if err := f.table.SetSendRate(&b.Entry, rates.Send, rates.MaxSend); err != nil {
			return err
		}
		b.Rates.Send, b.Rates.MaxSend = rates.Send, rates.MaxSend
	}
	if b.Rates.Receive != rates.Receive {
		if err := f.links.SetReceiveRate(b.place.Index, rates.Receive); err != nil {
			return err
		}
		b.Rates.Receive = rates.Receive
	}
	return nil
}

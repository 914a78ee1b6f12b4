package firewall

import (
	"context"
	"errors"
	"fmt"

	"boxgate/firewall/network"
	"boxgate/firewall/nft"
	"boxgate/firewall/report"
	"boxgate/internal/fault"
	"boxgate/policy"
)

var errUnknownBox = errors.New("unknown box")

// RemoveBox removes a box's interface, rules and connections. A box that does not exist is not an error. It goes
// through with that even if ctx ends, because a half-removed box is of no use. After an error the box can be removed again;
// until then nothing restores more of it than a plan that refuses everything.
func (f *Firewall) RemoveBox(ctx context.Context, id policy.BoxID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.remove(context.WithoutCancel(ctx), network.LinkName(id), id); err != nil {
		return fmt.Errorf("firewall: remove box %s: %w", id, err)
	}
	return nil
}

// remove removes the box of an interface. Of a box that an earlier run left, only the interface is known.
func (f *Firewall) remove(ctx context.Context, link string, id policy.BoxID) error {
	f.removing[link] = true
	left, known := f.leftover[link]
	e := &left
	b, ok := f.boxes.byID[id]
	switch {
	case ok:
		b.plan = policy.KernelPlan{}
		e = &b.Entry
	case !known:
		left = nft.NewEntry(id)
		left.Link = link
	}
	// The link first: rules without a link do no harm, and a link without rules is closed.
	err := f.links.Delete(e.Link)
	idle := false
	if ok {
		idle, b.noted = f.isIdle(b), false // its note is erased with its entry
	}
	err = errors.Join(err, fault.At(ctx, "remove: link deleted"))
	if ok || known {
		err = errors.Join(err, f.unregister(e))
	}
	if err != nil {
		if known {
			f.leftover[link] = left // which may be out of the table by now
		}
		return err
	}
	f.untrackBox(id)
	f.boxes.remove(id)
	delete(f.leftover, link)
	delete(f.removing, link)
	if idle {
		return nil
	}
	if _, err = f.flows.Cut(e.Mark, e.Sources, func(Flow) bool { return false }); err != nil {
		f.idle.suspect(*e)
	}
	return err
}

// finishRemoval goes through with a removal that has failed, so that what the box was allowed before does not come back
// with a box of the same name.
func (f *Firewall) finishRemoval(ctx context.Context, id policy.BoxID) error {
	link := network.LinkName(id)
	if !f.removing[link] {
		return nil
	}
	if err := f.remove(context.WithoutCancel(ctx), link, id); err != nil {
		return fmt.Errorf("box %s: its removal: %w", id, err)
	}
	return nil
}

// unregister takes the box out of the table.
func (f *Firewall) unregister(e *nft.Entry) error { return f.table.Unregister(e, f.sharesMark(e)) }

// sharesMark reports whether another box has the same mark.
func (f *Firewall) sharesMark(e *nft.Entry) bool {
	for _, b := range f.boxes.byID {
		if b.Link != e.Link && b.Mark == e.Mark {
			return true
		}
	}
	for link, other := range f.leftover {
		if link != e.Link && other.Mark == e.Mark {
			return true
		}
	}
	return false
}

// Prune removes the boxes of an earlier run that were not added again, and links of unknown boxes. Then it reports the
// connections that boxes began since that run.
func (f *Firewall) Prune(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for link := range f.leftover {
		if err := f.remove(context.WithoutCancel(ctx), link, ""); err != nil {
			errs = append(errs, fmt.Errorf("firewall: remove interface %s: %w", link, err))
		}
	}
	if f.reports != nil && !f.closed {
		f.reports.RecoverFlows(f.cfg.LastRun)
		f.reports.Begin()
	}
	known := map[int]bool{}
	for index := range f.boxes.byIndex {
		known[index] = true
	}
	return errors.Join(append(errs, f.links.DeleteOthers(known))...)
}

// trackBox tells the reports about a box, or its new plan.
func (f *Firewall) trackBox(b *box) {
	if f.reports != nil {
		f.reports.Track(report.Box{ID: b.ID, Link: b.Link, Index: b.at.Index, Addrs: b.Sources, Mark: b.Mark, Version: b.plan.Version})
	}
}

// untrackBox has the reports forget a box.
func (f *Firewall) untrackBox(id policy.BoxID) {
	if f.reports != nil {
		f.reports.Untrack(id)
	}
}

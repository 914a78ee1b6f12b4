package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
	"boxgate/firewall/nft"
	"boxgate/firewall/report"
	"boxgate/internal/fault"
	"boxgate/policy"
)

var errUnknownBox = errors.New("unknown box")

// AddBox attaches a box: its interface pair, addresses, routes and rules. The interface comes up only once the kernel
// knows it with a plan that refuses everything, so nothing gets out before the first [Firewall.Apply]. A box of an
// earlier run is adopted: its link and its rules stay in force until Apply. Calling AddBox again for an attached box
// repairs what is missing. The first packets may still be lost; [Firewall.AwaitBox] waits until the link passes
// packets.
func (f *Firewall) AddBox(ctx context.Context, a Attachment) error {
	if err := f.cfg.checkAttachment(a); err != nil {
		return fmt.Errorf("firewall: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.checkFree(a); err != nil {
		return fmt.Errorf("firewall: %w", err)
	}
	b, err := f.registerBox(a)
	if err != nil {
		return fmt.Errorf("firewall: box %s: %w", a.Box, err)
	}
	before, known := f.boxes.byID[a.Box]
	if b.noted = f.idle.noted(b.Entry); known {
		b.noted = before.noted
	} else {
		f.leftover[b.Link] = b.Entry // so that RemoveBox finds it, whether or not this succeeds
	}
	at, err := f.links.Attach(ctx, &b.Attachment)
	if err != nil {
		if !known {
			err = errors.Join(err, f.links.Delete(b.Link), f.unregister(b.Entry))
			delete(f.leftover, b.Link)
		}
		return fmt.Errorf("firewall: box %s: %w", a.Box, err)
	}
	f.boxes.put(b, at)
	delete(f.leftover, b.Link)
	f.trackBox(b)
	if f.reports != nil && len(f.leftover) == 0 {
		f.reports.Begin()
	}
	return nil
}

// checkFree refuses addresses and a namespace that another box has.
func (f *Firewall) checkFree(a Attachment) error {
	if f.closed {
		return errors.New("closed")
	}
	for _, addr := range []netip.Addr{a.V4, a.V6} {
		if other := f.boxes.byAddr[addr]; other != nil && other.Box != a.Box {
			return fmt.Errorf("box %s: its address belongs to box %s", a.Box, other.Box)
		}
	}
	if id, ok := f.holder(a.NetNS, a.Box); ok {
		return fmt.Errorf("box %s: its network namespace belongs to box %s", a.Box, id)
	}
	return nil
}

// holder returns the box other than the given one that has the network namespace. It does not look for the interface in
// it: a box that controls its own network may have moved that away.
func (f *Firewall) holder(path string, but policy.BoxID) (policy.BoxID, bool) {
	ns, err := namespace.IDAt(path)
	if err != nil {
		return "", false // and cannot be attached
	}
	b := f.boxes.byNS[ns]
	if b == nil || b.Box == but {
		return "", false
	}
	if now, err := namespace.IDAt(b.NetNS); err != nil || now != ns {
		return "", false // the box's is gone, and the kernel uses its number again
	}
	return b.Box, true
}

// registerBox registers the box's interface in the table. The box may reach what an earlier run left in force, else
// nothing.
func (f *Firewall) registerBox(a Attachment) (*box, error) {
	b := &box{Attachment: a, Entry: nft.NewEntry(a.Box, a.V4, a.V6)}
	old := f.leftover[b.Link]
	if known, ok := f.boxes.byID[a.Box]; ok {
		old, b.plan = known.Entry, known.plan
	}
	return b, f.table.Register(&b.Entry, old)
}

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
	e, known := f.leftover[link]
	b, ok := f.boxes.byID[id]
	if ok {
		b.plan = policy.KernelPlan{}
		e, known = b.Entry, true
	}
	if !known {
		e = nft.NewEntry(id)
		e.Link = link
	}
	// The link first: rules without a link do no harm, and a link without rules is closed.
	err := f.links.Delete(e.Link)
	idle := false
	if ok {
		idle, b.noted = f.isIdle(b), false // its note is erased with its entry
	}
	err = errors.Join(err, fault.At(ctx, "remove: link deleted"))
	if known {
		err = errors.Join(err, f.unregister(e))
	}
	if err != nil {
		return err
	}
	f.untrackBox(id)
	f.boxes.remove(id)
	delete(f.leftover, link)
	if idle {
		return nil
	}
	if _, err = f.flows.Cut(e.Mark, e.Sources, func(Flow) bool { return false }); err != nil {
		f.idle.suspect(e)
	}
	return err
}

// unregister takes the box out of the table.
func (f *Firewall) unregister(e nft.Entry) error { return f.table.Unregister(e, f.sharesMark(e)) }

// sharesMark reports whether another box has the same mark.
func (f *Firewall) sharesMark(e nft.Entry) bool {
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
	known := map[string]bool{}
	for _, b := range f.boxes.byID {
		known[b.Link] = true
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

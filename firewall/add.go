package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"boxgate/firewall/link"
	"boxgate/firewall/namespace"
	"boxgate/firewall/nft"
	"boxgate/policy"
)

// AddBox attaches a box: its interface pair, addresses, routes and rules. The interface comes up only after the kernel has
// the box with a plan that refuses everything, so no packet gets out before the first [Firewall.Apply]. A box of an earlier
// run is adopted: its link and rules stay active until Apply. Calling AddBox again for an attached box repairs it. The
// first packets may still be lost; [Firewall.AwaitBox] waits until the link passes packets.
func (f *Firewall) AddBox(ctx context.Context, a Attachment) error {
	return f.AddBoxes(ctx, []Attachment{a})[0]
}

// boxesPerTransaction is the maximum number of boxes per transaction. The kernel checks each transaction against the rules of all
// boxes, so there should be few transactions; but the error of a transaction does not identify the box that caused it.
const boxesPerTransaction = 100

// AddBoxes attaches boxes as AddBox does, and returns their errors in the same order. One transaction changes the table for
// many boxes, and the host's links and routes are read only once. All boxes in a failed transaction get its error; added
// one by one, the others would succeed.
func (f *Firewall) AddBoxes(ctx context.Context, list []Attachment) []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var view *link.View
	if len(list) > 1 {
		view, _ = f.links.ReadView() // without a view, links and routes are read per box
	}
	all := f.checkAttachments(ctx, list)
	for chunk := range slices.Chunk(all, boxesPerTransaction) {
		f.register(chunk)
		for _, j := range chunk {
			if j.err == nil {
				j.err = f.attachLink(ctx, j, view)
			}
		}
	}
	if f.reports != nil && len(f.leftover) == 0 {
		f.reports.Start()
	}
	errs := make([]error, len(list))
	for i, j := range all {
		if j.err != nil {
			errs[i] = fmt.Errorf("firewall: %w", j.err)
		}
	}
	return errs
}

// joining is a box that is being added.
type joining struct {
	*box
	old   nft.Entry // its entry in the table
	known bool      // it is attached already
	err   error
}

// fail records why the box cannot be added.
func (j *joining) fail(err error) { j.err = fmt.Errorf("box %s: %w", j.Box, err) }

// checkAttachments prepares the boxes and refuses those with an invalid attachment or an address or namespace of another box.
func (f *Firewall) checkAttachments(ctx context.Context, list []Attachment) []*joining {
	var all []*joining
	taken := claims{boxes: map[policy.BoxID]bool{}, addrs: map[netip.Addr]policy.BoxID{}, spaces: map[namespace.ID]policy.BoxID{}}
	for _, a := range list {
		j := &joining{box: &box{Attachment: a, Entry: nft.NewEntry(a.Box, a.V4, a.V6)}}
		j.SendRate = a.Rates.Send
		all = append(all, j)
		if j.err = f.cfg.checkAttachment(a); j.err != nil {
			continue
		}
		if j.err = f.checkFree(a, taken); j.err != nil {
			continue
		}
		taken.add(a)
		if j.err = f.finishRemoval(ctx, a.Box); j.err != nil {
			continue
		}
		j.old = f.leftover[j.Link]
		if known, ok := f.boxes.byID[a.Box]; ok {
			j.old, j.plan, j.noted, j.known = known.Entry, known.plan, known.noted, true
		}
	}
	return all
}

// claims are the IDs, addresses and namespaces of the boxes in one call of AddBoxes.
type claims struct {
	boxes  map[policy.BoxID]bool
	addrs  map[netip.Addr]policy.BoxID
	spaces map[namespace.ID]policy.BoxID
}

func (p *claims) add(a Attachment) {
	p.boxes[a.Box] = true
	p.addrs[a.V4], p.addrs[a.V6] = a.Box, a.Box
	if ns, err := namespace.IDAt(a.NetNS); err == nil { // otherwise it cannot be attached
		p.spaces[ns] = a.Box
	}
}

// checkFree refuses a box that is already being added, and addresses and a namespace that another box has or is about to
// get.
func (f *Firewall) checkFree(a Attachment, taken claims) error {
	if f.closed {
		return errors.New("closed")
	}
	if taken.boxes[a.Box] {
		return fmt.Errorf("box %s: it is being added already", a.Box)
	}
	for _, addr := range []netip.Addr{a.V4, a.V6} {
		id, held := taken.addrs[addr]
		if other := f.boxes.byAddr[addr]; other != nil {
			id, held = other.Box, true
		}
		if held && id != a.Box {
			return fmt.Errorf("box %s: its address belongs to box %s", a.Box, id)
		}
	}
	id, held := f.namespaceOwner(a.NetNS, a.Box)
	if ns, err := namespace.IDAt(a.NetNS); err == nil && !held {
		id, held = taken.spaces[ns]
	}
	if held && id != a.Box {
		return fmt.Errorf("box %s: its network namespace belongs to box %s", a.Box, id)
	}
	return nil
}

// namespaceOwner returns the box, other than but, that has the network namespace. It does not look for the interface in it, since a
// box that controls its own network may have moved that away.
func (f *Firewall) namespaceOwner(path string, but policy.BoxID) (policy.BoxID, bool) {
	ns, err := namespace.IDAt(path)
	if err != nil {
		return "", false // such a namespace cannot be attached
	}
	b := f.boxes.byNS[ns]
	if b == nil || b.Box == but {
		return "", false
	}
	if now, err := namespace.IDAt(b.NetNS); err != nil || now != ns {
		return "", false // the box's namespace is gone, and the kernel has reused its number
	}
	return b.Box, true
}

// register registers the boxes' interfaces in the table. A box left by an earlier run keeps its plan; others are closed.
func (f *Firewall) register(chunk []*joining) {
	var list []nft.Registration
	for _, j := range chunk {
		if j.err == nil {
			list = append(list, nft.Registration{Entry: &j.Entry, Old: j.old})
		}
	}
	if len(list) == 0 {
		return
	}
	err := f.table.Register(list...)
	for _, j := range chunk {
		switch {
		case j.err != nil:
		case err != nil:
			j.fail(err)
		case !j.known:
			j.noted = f.idle.allNoted(j.Entry)
			f.leftover[j.Link] = j.Entry // so that RemoveBox finds it even if its link cannot be made
		}
	}
}

// attachLink creates the link of a registered box.
func (f *Firewall) attachLink(ctx context.Context, j *joining, view *link.View) error {
	at, err := f.links.Attach(ctx, &j.Attachment, view)
	if err != nil {
		if !j.known {
			err = errors.Join(err, f.undoRegister(j))
		}
		return fmt.Errorf("box %s: %w", j.Box, err)
	}
	f.boxes.add(j.box, at)
	delete(f.leftover, j.Link)
	f.trackBox(j.box)
	return nil
}

// undoRegister undoes the registration of a box that cannot be attached. [Firewall.RemoveBox] removes anything that remains.
func (f *Firewall) undoRegister(j *joining) error {
	err := f.unregister(&j.Entry)
	f.idle.markUnnoted(j.Entry) // the note is gone, but not the connections under an earlier run's plan
	if err == nil {
		delete(f.leftover, j.Link)
	}
	return errors.Join(f.links.Delete(j.Link), err)
}

package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"boxgate/firewall/link"
	"boxgate/firewall/namespace"
	"boxgate/firewall/nft"
	"boxgate/firewall/report"
	"boxgate/policy"
)

var errUnknownBox = errors.New("unknown box")

// unregister removes the box from the table.
func (f *Firewall) unregister(e *nft.Entry) error {
	return f.table.Unregister(f.marksExcept([]string{e.Link}), e)
}

// marksExcept returns all connection marks. It is true for the marks of boxes that are not on the list: boxes may share a
// mark.
func (f *Firewall) marksExcept(links []string) map[uint32]bool {
	but, marks := map[string]bool{}, map[uint32]bool{}
	for _, link := range links {
		but[link] = true
	}
	for _, b := range f.boxes.byID {
		marks[b.Mark] = marks[b.Mark] || !but[b.Link]
	}
	for link, other := range f.leftover {
		marks[other.Mark] = marks[other.Mark] || !but[link]
	}
	return marks
}

// Prune removes the boxes of an earlier run that were not added again, and links of unknown boxes. Then it reports the
// connections that boxes have opened since that run.
func (f *Firewall) Prune(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for link := range f.leftover {
		if err := f.remove(context.WithoutCancel(ctx), link, ""); err != nil {
			errs = append(errs, fmt.Errorf("firewall: remove interface %s: %w", link, err))
		}
	}
	f.scheduleRemovals()
	if f.reports != nil && !f.closed {
		f.reports.RecoverFlows(f.cfg.LastRun)
		f.reports.Start()
	}
	known := map[int]bool{}
	for index := range f.boxes.byIndex {
		known[index] = true
	}
	return errors.Join(append(errs, f.links.DeleteOthers(known))...)
}

// trackBox passes a box, or its new plan, to the reports.
func (f *Firewall) trackBox(b *box) {
	if f.reports != nil {
		f.reports.Track(report.Box{ID: b.ID, Link: b.Link, Index: b.place.Index, Addrs: b.Sources, Mark: b.Mark, Version: b.plan.Version})
	}
}

// untrackBox removes a box from the reports.
func (f *Firewall) untrackBox(id policy.BoxID) {
	if f.reports != nil {
		f.reports.Untrack(id)
	}
}

// roster is the set of attached boxes, indexed by ID, addresses, interface and namespace. The zero value is empty.
type roster struct {
	byID    map[policy.BoxID]*box
	byAddr  map[netip.Addr]*box
	byIndex map[int]*box // of the interface on the host
	byNS    map[namespace.ID]*box
}

// add adds a box, or moves it to a new place.
func (r *roster) add(b *box, at link.Place) {
	if r.byID == nil {
		r.byID, r.byAddr = map[policy.BoxID]*box{}, map[netip.Addr]*box{}
		r.byIndex, r.byNS = map[int]*box{}, map[namespace.ID]*box{}
	}
	r.remove(b.Box)
	b.place = at
	r.byID[b.Box], r.byIndex[at.Index], r.byNS[at.Namespace] = b, b, b
	for _, a := range b.Sources {
		r.byAddr[a] = b
	}
}

// remove removes a box. Index entries that another box has taken over stay, because the kernel reuses its numbers.
func (r *roster) remove(id policy.BoxID) {
	b := r.byID[id]
	if b == nil {
		return
	}
	delete(r.byID, id)
	if r.byIndex[b.place.Index] == b {
		delete(r.byIndex, b.place.Index)
	}
	if r.byNS[b.place.Namespace] == b {
		delete(r.byNS, b.place.Namespace)
	}
	for _, a := range b.Sources {
		if r.byAddr[a] == b {
			delete(r.byAddr, a)
		}
	}
}

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
	if err == nil {
		f.dismissGuest(j.Box) // its configuration may have changed
		err = f.serveGuest(j.box, at)
	}
	if err != nil {
		if !j.known {
			err = errors.Join(err, f.undoRegister(j))
		}
		return fmt.Errorf("box %s: %w", j.Box, err)
	}
	f.boxes.add(j.box, at)
	delete(f.leftover, j.Link)
	f.trackBox(j.box)
	if f.suspended[j.ID] {
		return f.links.Lower(j.Link)
	}
	return nil
}

// undoRegister undoes the registration of a box that cannot be attached. [Firewall.RemoveBox] removes anything that remains.
func (f *Firewall) undoRegister(j *joining) error {
	err := f.unregister(&j.Entry)
	f.idle.markUnnoted(j.Entry) // the note is gone, but not the connections under an earlier run's plan
	if err == nil {
		delete(f.leftover, j.Link)
	}
	err = errors.Join(f.links.Delete(j.Link), err)
	f.deleteInside(&j.Attachment)
	return err
}

// boxTimeout is how long AwaitBox waits for the box's end of the link.
const boxTimeout = 3 * time.Second

// AwaitBox waits until packets pass the box's link both ways. The kernel brings a link up, and installs IPv6 addresses,
// with a short delay, and silently drops packets until then. A box that controls its own network can prevent that for ever.
// It only harms itself, so that is not an error: AwaitBox gives up after [boxTimeout], and nothing else waits for the box.
func (f *Firewall) AwaitBox(ctx context.Context, id policy.BoxID) error {
	f.mu.Lock()
	a, ok := f.boxes.byID[id]
	f.mu.Unlock()
	if !ok {
		return fmt.Errorf("firewall: box %s: %w", id, errUnknownBox)
	}
	if a.Tap != nil { // the virtual machine may start later
		return nil
	}
	ns, inside, err := namespace.Open(a.NetNS)
	if err != nil {
		return fmt.Errorf("firewall: box %s: %w", id, err)
	}
	defer func() { _ = ns.Close() }()
	defer inside.Close()
	patience, cancel := context.WithTimeout(ctx, boxTimeout)
	defer cancel()
	for _, wait := range []func() error{
		func() error { return namespace.AwaitCarrier(patience, f.nl, a.Link) },
		func() error { return namespace.AwaitCarrier(patience, inside, link.Inside) },
		func() error { return namespace.AwaitLocal(patience, inside, a.V4) },
		func() error { return namespace.AwaitLocal(patience, inside, a.V6) },
	} {
		if wait() != nil {
			return ctx.Err()
		}
	}
	return nil
}

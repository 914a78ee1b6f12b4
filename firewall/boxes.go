package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"boxgate/internal/fault"
	"boxgate/policy"
)

var errUnknownBox = errors.New("unknown box")

// AddBox attaches a box: its interface pair, addresses, routes and rules. The interface comes up only once the kernel
// knows it with a plan that refuses everything, so nothing gets out before the first [Firewall.Apply]. A box of an
// earlier run is adopted: its link and its rules stay in force until Apply. Calling it again for a box that is there
// repairs what is missing. The first packets may still be lost: [Firewall.AwaitBox] waits until none is.
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
	_, known := f.boxes[a.Box]
	if !known {
		f.leftover[b.link] = b.registration // so that RemoveBox finds it, however this ends
	}
	if b.index, err = f.attach(ctx, b); err != nil {
		if !known {
			err = errors.Join(err, f.deleteLink(b.link), f.unregister(b.registration))
			delete(f.leftover, b.link)
		}
		return fmt.Errorf("firewall: box %s: %w", a.Box, err)
	}
	f.boxes[a.Box] = b
	delete(f.leftover, b.link)
	f.trackBox(b)
	if f.reports != nil && len(f.leftover) == 0 {
		f.reports.begin()
	}
	return nil
}

// checkFree refuses addresses and a namespace that another box has.
func (f *Firewall) checkFree(a Attachment) error {
	if f.closed {
		return errors.New("closed")
	}
	for id, other := range f.boxes {
		if id != a.Box && (other.V4 == a.V4 || other.V6 == a.V6) {
			return fmt.Errorf("box %s: its address belongs to box %s", a.Box, id)
		}
	}
	if id, ok := f.holder(a.NetNS, a.Box); ok {
		return fmt.Errorf("box %s: its network namespace belongs to box %s", a.Box, id)
	}
	return nil
}

// holder returns the box, other than the one given, that has the network namespace. The interface in it does not tell: a
// box with a say in its own network may have moved it away.
func (f *Firewall) holder(path string, but policy.BoxID) (policy.BoxID, bool) {
	var ns, other unix.Stat_t
	if unix.Stat(path, &ns) != nil {
		return "", false // and cannot be attached
	}
	for id, b := range f.boxes {
		if id != but && unix.Stat(b.NetNS, &other) == nil && other.Dev == ns.Dev && other.Ino == ns.Ino {
			return id, true
		}
	}
	return "", false
}

// registerBox makes the kernel know the box's interface. What it may reach is what an earlier run left, else nothing.
func (f *Firewall) registerBox(a Attachment) (*box, error) {
	b := &box{Attachment: a, registration: registration{link: linkName(a.Box), sources: []netip.Addr{a.V4, a.V6},
		mark: boxMark(a.Box), live: closed()}}
	old := f.leftover[b.link]
	if known, ok := f.boxes[a.Box]; ok {
		old, b.plan = known.registration, known.plan
	}
	if old.live != nil {
		b.live = old.live
	}
	err := f.transact(func(t *txn) {
		s := newStaticSets()
		for _, addr := range old.sources {
			if !slices.Contains(b.sources, addr) {
				t.deleteElements(s.sources[familyOf(addr)], sourceKey(b.link, addr))
			}
		}
		t.register(b.registration)
		t.addElements(boxesMap(), []nftables.SetElement{leadTo(b.link, b.live.chain)})
	}, func(c *nftables.Conn) (bool, error) {
		if old.live != nil {
			return false, nil
		}
		targets, err := readTargets(c)
		return targets[b.link] == b.live.chain, err
	})
	return b, err
}

// RemoveBox takes a box's interface, rules and connections away. A box that is not there is no error. It does all of it
// even if ctx ends: a box that is half removed is of no use to anybody.
func (f *Firewall) RemoveBox(_ context.Context, id policy.BoxID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.remove(linkName(id), id); err != nil {
		return fmt.Errorf("firewall: remove box %s: %w", id, err)
	}
	return nil
}

// remove takes away the box of an interface. Of one that an earlier run left, only that is known.
func (f *Firewall) remove(link string, id policy.BoxID) error {
	r, known := f.leftover[link]
	if b, ok := f.boxes[id]; ok {
		r, known = b.registration, true
	}
	if !known {
		r = registration{link: link, mark: boxMark(id)}
	}
	// The link goes first: rules without a link harm nobody, and a link without rules is closed.
	err := f.deleteLink(r.link)
	err = errors.Join(err, fault.At(context.Background(), "remove: link deleted"))
	if known {
		err = errors.Join(err, f.unregister(r))
	}
	if err != nil {
		return err
	}
	f.untrackBox(id)
	delete(f.boxes, id)
	delete(f.leftover, link)
	return f.cut(r, func(Flow) bool { return false })
}

// unregister takes the box out of the table. When someone else has taken the table away, that is done already.
func (f *Firewall) unregister(r registration) error {
	err := f.transact(func(t *txn) {
		s := newStaticSets()
		t.deleteElements(s.boxes, nftables.SetElement{Key: ifname(r.link)})
		t.deleteElements(s.marks, nftables.SetElement{Key: ifname(r.link)})
		t.deleteElements(s.replies, r.reply())
		if !f.sharesMark(r) {
			t.deleteElements(s.flows, nftables.SetElement{Key: native32(r.mark | flowForwarded)})
		}
		for _, a := range r.sources {
			t.deleteElements(s.sources[familyOf(a)], sourceKey(r.link, a))
		}
	}, func(c *nftables.Conn) (bool, error) {
		targets, err := readTargets(c)
		_, there := targets[r.link]
		return !there, err
	})
	if err != nil {
		return err
	}
	if r.live != nil && r.live.chain != chainClosed {
		f.garbage = append(f.garbage, r.live)
	}
	f.collect()
	return nil
}

// sharesMark reports whether another box has the same mark.
func (f *Firewall) sharesMark(r registration) bool {
	for _, b := range f.boxes {
		if b.link != r.link && b.mark == r.mark {
			return true
		}
	}
	for link, other := range f.leftover {
		if link != r.link && other.mark == r.mark {
			return true
		}
	}
	return false
}

// Prune takes away the boxes of an earlier run that were not added again, and links of boxes that nothing knows. Then it
// reports the connections that boxes began since that run.
func (f *Firewall) Prune(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for link := range f.leftover {
		if err := f.remove(link, ""); err != nil {
			errs = append(errs, fmt.Errorf("firewall: remove interface %s: %w", link, err))
		}
	}
	if f.reports != nil && !f.closed {
		f.reports.recoverFlows(f.cfg.LastRun)
		f.reports.begin()
	}
	return errors.Join(append(errs, f.deleteStrayLinks())...)
}

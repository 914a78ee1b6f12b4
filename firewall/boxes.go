package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"boxgate/internal/fault"
	"boxgate/policy"
)

var errUnknownBox = errors.New("unknown box")

func (r registration) verdict() *expr.Verdict {
	return &expr.Verdict{Kind: expr.VerdictGoto, Chain: r.chain}
}

// readBoxes fills leftover from the sets of an existing table and reports whether its layout is ours.
func (f *Firewall) readBoxes(c *nftables.Conn) (bool, error) {
	rules, err := c.GetRules(table(), &nftables.Chain{Name: chainAbout, Table: table()})
	if err != nil || len(rules) == 0 {
		return false, nil //nolint:nilerr // not a table of ours, or half a one: it is replaced by a closed one
	}
	stamp, _ := userdata.GetString(rules[0].UserData, userdata.TypeComment)
	if want := f.cfg.layout(); len(stamp) < len(want) || stamp[:len(want)] != want {
		return false, nil
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("nftables: %w", err)
	}
	for _, ch := range chains {
		if id, ok := boxOfChain(ch.Name); ok && ch.Table.Name == tableName {
			f.leftover[id] = registration{link: linkName(id), mark: boxMark(id), chain: ch.Name}
		}
	}
	return true, f.readSources(c)
}

// readSources adds to each leftover the source addresses it may use.
func (f *Firewall) readSources(c *nftables.Conn) error {
	byLink := map[string]policy.BoxID{}
	for id, r := range f.leftover {
		byLink[r.link] = id
	}
	for _, fam := range families {
		elements, err := c.GetSetElements(&nftables.Set{Table: table(), Name: "sources" + fam.suffix()})
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		for _, e := range elements {
			if len(e.Key) <= 16 {
				continue
			}
			id, known := byLink[string(bytes.TrimRight(e.Key[:16], "\x00"))]
			if a, ok := addrOf(e.Key[16:]); ok && known {
				r := f.leftover[id]
				r.sources = append(r.sources, a)
				f.leftover[id] = r
			}
		}
	}
	return nil
}

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
		f.leftover[a.Box] = b.registration // so that RemoveBox finds it, however this ends
	}
	if b.index, err = f.attach(ctx, b); err != nil {
		if !known {
			err = errors.Join(err, f.deleteLink(b.link), f.unregister(b.Box, b.registration))
			delete(f.leftover, a.Box)
		}
		return fmt.Errorf("firewall: box %s: %w", a.Box, err)
	}
	f.boxes[a.Box] = b
	delete(f.leftover, a.Box)
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
		mark: boxMark(a.Box), chain: boxChain(a.Box)}}
	old, adopted := f.leftover[a.Box]
	if known, ok := f.boxes[a.Box]; ok {
		old, adopted, b.plan = known.registration, true, known.plan
	}
	stamp := newStamp(0)
	err := f.transact(func(t *txn) {
		s := t.declareSets()
		for _, addr := range old.sources {
			if !slices.Contains(b.sources, addr) {
				t.deleteElements(s.sources[familyOf(addr)], sourceKey(b.link, addr))
			}
		}
		if !adopted {
			t.writePlan(a.Box, policy.KernelPlan{}, stamp)
		}
		t.register(s, b.registration)
	}, func(c *nftables.Conn) (bool, error) {
		if adopted {
			return false, nil
		}
		return stamped(c, b.chain, stamp)
	})
	return b, err
}

// RemoveBox takes a box's interface, rules and connections away. A box that is not there is no error. It does all of it
// even if ctx ends: a box that is half removed is of no use to anybody.
func (f *Firewall) RemoveBox(_ context.Context, id policy.BoxID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, known := f.leftover[id]
	if b, ok := f.boxes[id]; ok {
		r, known = b.registration, true
	}
	if !known {
		r = registration{link: linkName(id), mark: boxMark(id), chain: boxChain(id)}
	}
	// The link goes first: rules without a link harm nobody, and a link without rules is closed.
	err := f.deleteLink(r.link)
	err = errors.Join(err, fault.At(context.Background(), "remove: link deleted"))
	if known {
		err = errors.Join(err, f.unregister(id, r))
	}
	if err != nil {
		return fmt.Errorf("firewall: remove box %s: %w", id, err)
	}
	f.untrackBox(id)
	delete(f.boxes, id)
	delete(f.leftover, id)
	if err := f.cut(r, func(Flow) bool { return false }); err != nil {
		return fmt.Errorf("firewall: remove box %s: %w", id, err)
	}
	return nil
}

// unregister takes the box out of the table. When someone else has taken the table away, that is done already.
func (f *Firewall) unregister(id policy.BoxID, r registration) error {
	return f.transact(func(t *txn) {
		s := t.declareSets()
		t.deleteElements(s.boxes, nftables.SetElement{Key: ifname(r.link)})
		t.deleteElements(s.marks, nftables.SetElement{Key: ifname(r.link)})
		t.deleteElements(s.replies, r.reply())
		if !f.sharesMark(id, r.mark) {
			t.deleteElements(s.flows, nftables.SetElement{Key: native32(r.mark | flowForwarded)})
		}
		for _, a := range r.sources {
			t.deleteElements(s.sources[familyOf(a)], sourceKey(r.link, a))
		}
		sets := t.declareBox(id) // empties the chains, which frees the sets
		for _, f4 := range families {
			t.c.DelSet(sets.allowed[f4])
			t.c.DelSet(sets.denied[f4])
		}
		t.c.DelChain(&nftables.Chain{Name: boxChain(id), Table: t.table})
		t.c.DelChain(&nftables.Chain{Name: openChain(id), Table: t.table})
	}, func(c *nftables.Conn) (bool, error) {
		chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
		return !slices.ContainsFunc(chains, func(ch *nftables.Chain) bool {
			return ch.Table.Name == tableName && ch.Name == boxChain(id)
		}), err
	})
}

func (f *Firewall) sharesMark(id policy.BoxID, mark uint32) bool {
	for other, b := range f.boxes {
		if other != id && b.mark == mark {
			return true
		}
	}
	for other, r := range f.leftover {
		if other != id && r.mark == mark {
			return true
		}
	}
	return false
}

// Prune takes away the boxes of an earlier run that were not added again, and links of boxes that nothing knows. Then it
// reports the connections that boxes began since that run.
func (f *Firewall) Prune(ctx context.Context) error {
	f.mu.Lock()
	ids := []policy.BoxID{}
	for id := range f.leftover {
		ids = append(ids, id)
	}
	f.mu.Unlock()
	var errs []error
	for _, id := range ids {
		errs = append(errs, f.RemoveBox(ctx, id))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reports != nil && !f.closed {
		f.reports.recoverFlows(f.cfg.LastRun)
		f.reports.begin()
	}
	return errors.Join(append(errs, f.deleteStrayLinks())...)
}

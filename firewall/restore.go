package firewall

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/zap"

	"boxgate/firewall/link"
	"boxgate/firewall/namespace"
	"boxgate/firewall/nft"
	"boxgate/firewall/watch"
	"boxgate/policy"
)

// Restore rewrites the table, the routing and every box's rules from the state of this process, after another program has
// changed them. Boxes are closed while it runs.
func (f *Firewall) Restore(ctx context.Context) error {
	problems, err := f.restore(ctx)
	errs := []error{err}
	for id, problem := range problems {
		errs = append(errs, fmt.Errorf("firewall: restore box %s: %w", id, problem))
	}
	return errors.Join(errs...)
}

// repairer is the watcher's interface to the firewall.
type repairer struct{ *Firewall }

// BoxAt calls visit for the box with the lock held, so that our own change of it is not taken for another program's.
func (f repairer) BoxAt(index int, visit func(watch.Box)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.boxes.byIndex[index].visit(visit)
}

// BoxOf does the same for the box with the address.
func (f repairer) BoxOf(a netip.Addr, visit func(watch.Box)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.boxes.byAddr[a].visit(visit)
}

// BoxesOf does the same for all boxes with the addresses.
func (f repairer) BoxesOf(addrs map[netip.Addr]bool, visit func(netip.Addr, watch.Box)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for a := range addrs {
		f.boxes.byAddr[a].visit(func(b watch.Box) { visit(a, b) })
	}
}

// visit calls visit with the box; for nil it is a no-op.
func (b *box) visit(visit func(watch.Box)) {
	if b != nil {
		visit(watch.Box{ID: b.Box, Link: b.Link, Index: b.place.Index})
	}
}

// RestoreAll restores everything.
func (f repairer) RestoreAll(ctx context.Context) (map[policy.BoxID]error, error) {
	return f.restore(ctx)
}

// FollowUplink sets the MTU of the uplink on the links of all boxes. If that fails for a link, its next repair sets it.
func (f repairer) FollowUplink() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || !f.links.MeasureUplink() {
		return
	}
	for id, b := range f.boxes.byID {
		if err := f.links.Resize(&b.Attachment, b.place.Index); err != nil && !errors.Is(err, namespace.ErrGone) {
			f.cfg.Log.Warn("the link of a box does not have the MTU of the uplink", zap.String("box", string(id)), zap.Error(err))
		}
	}
}

// IsGone reports whether the box's network namespace is gone, as when the box was stopped by another program. Then there is
// nothing to repair, which is logged once.
func (f repairer) IsGone(id policy.BoxID, problem error) bool {
	if !errors.Is(problem, namespace.ErrGone) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if b, ok := f.boxes.byID[id]; ok && !b.gone {
		b.gone = true
		f.cfg.Log.Warn("the network namespace of a box is gone; the box has no network until it is attached again",
			zap.String("box", string(id)), zap.Error(problem))
	}
	return true
}

// RestoreBoxes restores those boxes that are still attached, and returns the restored ones and the errors of the others.
func (f repairer) RestoreBoxes(ctx context.Context, boxes map[policy.BoxID]bool) (restored []policy.BoxID, problems map[policy.BoxID]error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	problems = map[policy.BoxID]error{}
	for id := range boxes {
		if b, ok := f.boxes.byID[id]; ok && !f.closed {
			if _, failed := f.removing[b.Link]; failed || f.suspended[b.ID] {
				continue // its link is down on purpose; a failed removal is retried, and Resume restores a suspended box
			}
			if !b.repairs.allow(time.Now()) {
				problems[id] = errFlapping
				continue
			}
			if err := f.restoreBox(ctx, b); err != nil {
				problems[id] = err
				continue
			}
			restored = append(restored, id)
		}
	}
	return restored, problems
}

// restore returns the errors of single boxes, and an error if the shared part could not be restored.
func (f *Firewall) restore(ctx context.Context) (map[policy.BoxID]error, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, errors.New("firewall: closed")
	}
	steps := []func() error{func() error { return f.install(false) }, f.routing.SetAddresses, f.routing.Install,
		func() error { return f.routing.AwaitAddresses(ctx) }, f.routing.SetForwarding}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, fmt.Errorf("firewall: restore: %w", err)
		}
	}
	view, _ := f.links.ReadView() // without a view, links and routes are read per box
	problems := map[policy.BoxID]error{}
	for chunk := range slices.Chunk(slices.Collect(maps.Values(f.boxes.byID)), boxesPerTransaction) {
		f.restoreChunk(ctx, chunk, view, problems)
	}
	f.table.Collect()
	return problems, nil
}

// restoreChunk restores the boxes of one transaction. If it fails, they are restored one by one.
func (f *Firewall) restoreChunk(ctx context.Context, chunk []*box, view *link.View, problems map[policy.BoxID]error) {
	var changes []nft.Change
	for _, b := range chunk {
		changes = append(changes, nft.Change{Entry: &b.Entry, Plan: b.plan})
	}
	restore := func(b *box) error { return f.restoreLink(ctx, b, view) }
	if err := f.table.Restore(changes...); err != nil {
		f.cfg.Log.Warn("boxes could not be restored together; they are restored one by one", zap.Int("boxes", len(chunk)), zap.Error(err))
		restore = func(b *box) error { return f.restoreBox(ctx, b) }
	}
	for _, b := range chunk {
		if err := restore(b); err != nil {
			problems[b.ID] = err
		}
	}
}

// restoreBox writes the plan of a box, registers its interface and restores its link.
func (f *Firewall) restoreBox(ctx context.Context, b *box) error {
	defer f.table.Collect()
	if err := f.table.Restore(nft.Change{Entry: &b.Entry, Plan: b.plan}); err != nil {
		return err
	}
	return f.restoreLink(ctx, b, nil)
}

// restoreLink restores the interface pair of a box.
func (f *Firewall) restoreLink(ctx context.Context, b *box, view *link.View) error {
	if f.suspended[b.ID] {
		return nil
	}
	at, err := f.links.Attach(ctx, &b.Attachment, view)
	if err != nil {
		return err
	}
	f.boxes.add(b, at)
	f.trackBox(b)
	return f.serveGuest(b, at)
}

// errFlapping is returned when a box's link has been repaired too often recently. A box that controls its own network can
// take its link down as fast as it is restored, and would keep the gateway busy.
var errFlapping = errors.New("it keeps changing, and is repaired at a limited rate")

// A box's link can be repaired repairBurst times per repairInterval.
const (
	repairBurst    = 20
	repairInterval = 10 * time.Second
)

// repairs counts the recent repairs of one box. The zero value is ready to use.
type repairs struct {
	since time.Time
	n     int
}

// allow reports whether one more repair is allowed, and counts it.
func (r *repairs) allow(now time.Time) bool {
	if now.Sub(r.since) > repairInterval {
		r.since, r.n = now, 0
	}
	r.n++
	return r.n <= repairBurst
}

// ErrAddressesChanging is returned by [HostAddresses] together with an incomplete list.
var ErrAddressesChanging = errors.New("the addresses change faster than they can be listed")

// HostAddresses returns every address of the network namespace of the calling thread. If they keep changing, it returns the
// addresses seen so far and [ErrAddressesChanging]: some may be missing, and others gone.
func HostAddresses() ([]netip.Addr, error) {
	list, err := namespace.Seen(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	switch {
	case errors.Is(err, netlink.ErrDumpInterrupted):
		seen := addressesIn(list)
		slices.SortFunc(seen, netip.Addr.Compare)
		return slices.Compact(seen), ErrAddressesChanging
	case err != nil:
		return nil, err
	}
	return addressesIn(list), nil
}

func addressesIn(list []netlink.Addr) (own []netip.Addr) {
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			own = append(own, addr.Unmap())
		}
	}
	return own
}

// HostAddressChanges returns a channel that receives when the addresses may have changed since the last receive. It is
// closed when ctx ends, and when changes may have been missed: the caller must then subscribe again.
func HostAddressChanges(ctx context.Context) (<-chan struct{}, error) {
	ctx, cancel := context.WithCancel(ctx)
	updates := make(chan netlink.AddrUpdate, 64)
	err := netlink.AddrSubscribeWithOptions(updates, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: func(error) { cancel() }})
	if err != nil {
		cancel()
		return nil, err
	}
	changed := make(chan struct{}, 1)
	go func() { // the kernel drops messages that are not read soon
		defer close(changed)
		defer cancel()
		for range updates {
			select {
			case changed <- struct{}{}:
			default: // the pending element covers this change, too
			}
		}
	}()
	return changed, nil
}

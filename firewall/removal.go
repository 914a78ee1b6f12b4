package firewall

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/firewall/flow"
	"boxgate/firewall/network"
	"boxgate/firewall/nft"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// RemoveBox removes a box's interface, rules and connections. A box that does not exist is not an error. RemoveBox
// continues even if ctx ends, because a half-removed box is useless. After an error the removal is retried until it
// succeeds or [Firewall.AddBoxes] completes it; until then [Firewall.Unremoved] lists the box, and a repair gives it only a
// plan that refuses everything.
//
// Removing a hundred boxes takes the kernel about as long as removing one. So the first caller that gets the lock removes
// the boxes of all waiting callers. A policy change waits for one batch, even if many boxes lose their sandboxes at
// the same time.
func (f *Firewall) RemoveBox(ctx context.Context, id policy.BoxID) error {
	r := &removal{box: id}
	f.removals.enqueue(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.scheduleRemovals()
	if !r.done { // otherwise another caller has removed it
		f.removeAll(context.WithoutCancel(ctx), f.removals.dequeue(r, boxesPerTransaction))
	}
	if r.err != nil {
		return fmt.Errorf("firewall: remove box %s: %w", id, r.err)
	}
	return nil
}

// removal is a pending call of RemoveBox.
type removal struct {
	box  policy.BoxID
	done bool  // guarded by the firewall's mu
	err  error // guarded by the firewall's mu
}

// removals is the queue of pending removals. The zero value is empty.
type removals struct {
	mu      sync.Mutex
	waiting []*removal
}

func (q *removals) enqueue(r *removal) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, r)
}

// dequeue dequeues up to most removals of distinct boxes, beginning with first, which may have been dequeued already.
func (q *removals) dequeue(first *removal, most int) []*removal {
	q.mu.Lock()
	defer q.mu.Unlock()
	list, boxes := []*removal{first}, map[policy.BoxID]bool{first.box: true}
	q.waiting = slices.DeleteFunc(q.waiting, func(r *removal) bool {
		switch {
		case r == first:
			return true
		case len(list) >= most || boxes[r.box]:
			return false
		}
		list, boxes[r.box] = append(list, r), true
		return true
	})
	return list
}

// removeAll removes boxes together. If that fails, it removes them one by one, so that one box cannot prevent the others'
// removal.
func (f *Firewall) removeAll(ctx context.Context, list []*removal) {
	if len(list) > 1 {
		if err := f.removeTogether(ctx, list); err != nil {
			f.cfg.Log.Warn("boxes could not be removed together; they are removed one by one", zap.Int("boxes", len(list)), zap.Error(err))
		}
	}
	for _, r := range list {
		if !r.done {
			r.err = f.remove(ctx, network.LinkName(r.box), r.box)
			r.done = true
		}
	}
}

// removeTogether removes the boxes on the list that are attached: their interfaces by device group, their rules in one
// transaction, and their connections with one dump of the connection table.
func (f *Firewall) removeTogether(ctx context.Context, list []*removal) error {
	var boxes []*box
	var links []string
	for _, r := range list {
		if b, ok := f.boxes.byID[r.box]; ok {
			boxes, links = append(boxes, b), append(links, b.Link)
			f.removing[b.Link], b.plan = b.ID, policy.KernelPlan{}
		}
	}
	if len(boxes) == 0 {
		return nil // removeAll removes them one by one
	}
	// The links first, as in remove.
	if err := f.links.DeleteAll(links); err != nil {
		return err
	}
	var entries []*nft.Entry
	busy := map[flow.Owner]bool{}
	for _, b := range boxes {
		if !f.isIdle(b) {
			for _, a := range b.Sources {
				busy[flow.Owner{Mark: b.Mark, Addr: a}] = true
			}
		}
		b.noted = false // its note is erased with its entry
		entries = append(entries, &b.Entry)
	}
	if err := errors.Join(linkDeleted(ctx), f.table.Unregister(f.marksExcept(links), entries...)); err != nil {
		return err
	}
	var err error
	if len(busy) > 0 {
		err = f.flows.CutAll(func(o flow.Owner, _ Flow) bool { return !busy[o] })
	}
	for _, b := range boxes {
		f.forgetBox(b.ID, b.Link)
		if err != nil {
			f.idle.markUnnoted(b.Entry)
		}
	}
	for _, r := range list {
		if slices.ContainsFunc(boxes, func(b *box) bool { return b.ID == r.box }) {
			r.done, r.err = true, err
		}
	}
	return nil
}

// linkDeleted is the fault point between the deletion of interfaces and of their rules.
func linkDeleted(ctx context.Context) error { return fault.At(ctx, "remove: link deleted") }

// forgetBox drops the state of a removed box, and deletes its tap if that is in its namespace, where it leads nowhere.
func (f *Firewall) forgetBox(id policy.BoxID, link string) {
	if b, ok := f.boxes.byID[id]; ok {
		f.deleteInside(&b.Attachment)
	}
	f.untrackBox(id)
	f.dismissGuest(id)
	f.boxes.remove(id)
	delete(f.leftover, link)
	delete(f.removing, link)
}

// deleteInside deletes the tap in the namespace of a box without a link. The box's removal does not depend on it.
func (f *Firewall) deleteInside(a *Attachment) {
	if err := f.links.DeleteInside(a); err != nil {
		f.cfg.Log.Warn("the tap of a box remains in its network namespace; delete it before attaching the namespace again",
			zap.String("box", string(a.Box)), zap.Error(err))
	}
}

// remove removes the box of an interface. For a box that an earlier run left, id is empty.
func (f *Firewall) remove(ctx context.Context, link string, id policy.BoxID) error {
	f.removing[link] = id
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
	// The link first: rules without a link are harmless, and a link without rules is closed.
	err := fault.At(ctx, "remove: begun")
	if err == nil {
		err = f.links.Delete(e.Link)
	}
	if err != nil {
		err = errors.Join(err, f.links.Lower(e.Link)) // the kernel may accept this nevertheless
	}
	idle := false
	if ok {
		idle, b.noted = f.isIdle(b), false // its note is erased with its entry
	}
	failed := linkDeleted(ctx)
	if failed == nil && (ok || known) {
		failed = f.unregister(e)
	}
	err = errors.Join(err, failed)
	if err != nil {
		if known {
			f.leftover[link] = left // updated by unregister
		}
		return err
	}
	f.forgetBox(id, link)
	if idle {
		return nil
	}
	if _, err = f.flows.Cut(e.Mark, e.Sources, func(Flow) bool { return false }); err != nil {
		f.idle.markUnnoted(*e)
	}
	return err
}

// finishRemoval completes a failed removal, so that a new box with the same ID does not get the old box's plan.
func (f *Firewall) finishRemoval(ctx context.Context, id policy.BoxID) error {
	link := network.LinkName(id)
	if _, failed := f.removing[link]; !failed {
		return nil
	}
	if err := f.remove(context.WithoutCancel(ctx), link, id); err != nil {
		return fmt.Errorf("box %s: its removal: %w", id, err)
	}
	return nil
}

// A failed removal is retried with a delay that doubles from firstRemoval to lastRemoval.
const (
	firstRemoval = time.Second
	lastRemoval  = time.Minute
)

// removalRetry is the schedule of retries of failed removals. It is guarded by the firewall's mu.
type removalRetry struct {
	timer *time.Timer   // nil: no removal has failed
	first time.Duration // delay of the first retry: [firstRemoval], except in tests
	wait  time.Duration // delay of the running timer
}

// scheduleRemovals schedules a retry if removals have failed. The caller holds mu.
func (f *Firewall) scheduleRemovals() {
	if f.retry.timer == nil && len(f.removing) > 0 && !f.closed {
		f.retry.wait = min(max(2*f.retry.wait, f.retry.first), lastRemoval)
		f.retry.timer = time.AfterFunc(f.retry.wait, f.retryRemovals)
	}
	if len(f.removing) == 0 {
		f.retry.wait = 0
	}
}

// retryRemovals retries the removals that have failed: the kernel may still forward the traffic of such a box under its old
// plan, while the rest of the gateway regards the box as closed.
func (f *Firewall) retryRemovals() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.retry.timer = nil
	for link, id := range maps.Clone(f.removing) {
		if err := f.remove(context.Background(), link, id); err != nil {
			f.cfg.Log.Error("the network of a box cannot be removed; the kernel may still forward its traffic; retrying",
				zap.String("box", string(id)), zap.String("interface", link), zap.Duration("waited", f.retry.wait), zap.Error(err))
			continue
		}
		f.cfg.Log.Warn("the network of a box is removed, after a failed attempt", zap.String("box", string(id)), zap.String("interface", link))
	}
	f.scheduleRemovals()
}

// Unremoved returns the interfaces of boxes whose removal has failed and is being retried, sorted. The kernel may still
// forward their traffic.
func (f *Firewall) Unremoved() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.removing))
}

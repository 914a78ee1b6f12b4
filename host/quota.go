package host

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/host/handover"
	"boxgate/host/meter"
	"boxgate/policy"
)

// quotaPace is how often it is looked how much boxes have transferred.
const quotaPace = time.Second

// quota cuts off the boxes that have sent and received as many bytes as they may in a period, until it is over: policies
// are withheld from them, and visitors of their public URLs are refused.
type quota struct {
	before   *Predecessor
	most     uint64 // in a period; 0: no limit
	log      *zap.Logger
	meter    *meter.Meter
	boxes    *boxes
	policies *policies
	visitors interface{ CloseBox(policy.BoxID) } // of public URLs
}

// run looks at all boxes until ctx ends.
func (q *quota) run(ctx context.Context) {
	if q.most == 0 {
		return
	}
	var changes sync.WaitGroup
	defer changes.Wait()
	tick := time.NewTicker(quotaPace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			q.look(ctx, &changes)
		}
	}
}

// look has each box cut off that has used up its quota, and each connected again that has a new one. No box waits for
// another's change.
func (q *quota) look(ctx context.Context, changes *sync.WaitGroup) {
	all := q.boxes.ids()
	used, err := q.meter.Transferred(all...)
	if err != nil { // those that are known to have used up theirs are cut off
		q.log.Error("what boxes have transferred since the last look is not known; it is tried again", zap.Error(err))
	}
	for _, id := range all {
		b, err := q.boxes.find(id)
		if err != nil {
			continue
		}
		spent := used[id] >= q.most
		if spent != b.spent.Load() && b.sparing.CompareAndSwap(false, true) {
			changes.Go(func() {
				defer b.sparing.Store(false)
				q.set(ctx, b, spent)
			})
		}
	}
}

// spent says which boxes have used up their quota. Where the counters cannot be read, those have that had when they were
// read last.
func (q *quota) spent(list []policy.BoxID) map[policy.BoxID]bool {
	out := map[policy.BoxID]bool{}
	if q.most == 0 {
		return out
	}
	used, err := q.meter.Transferred(list...)
	if err != nil {
		q.log.Warn("what boxes have transferred lately is not known yet", zap.Error(err))
	}
	for id, n := range used {
		out[id] = n >= q.most
	}
	return out
}

// set cuts a box off, or takes that back. What cannot be put in force is tried again.
func (q *quota) set(ctx context.Context, b *box, spent bool) {
	id := zap.String("box", string(b.ID))
	if err := q.putInForce(ctx, b, spent); err != nil {
		q.log.Error("a box's quota could not be put in force; it is tried again", id, zap.Bool("used_up", spent), zap.Error(err))
		return
	}
	if !spent {
		q.log.Info("a new period has begun, and a box that had used up its quota goes on", id)
		return
	}
	q.visitors.CloseBox(b.ID) // without the box's lock, for which a visitor may be waiting
	q.before.tell(handover.Message{Kind: handover.URLs, Box: b.ID})
	q.log.Warn("a box has used up its quota, and is cut off until the next period", id, zap.Uint64("quota", q.most))
}

// putInForce changes what the box may do. From its first step on, whatever else changes the box's policy regards it.
func (q *quota) putInForce(ctx context.Context, b *box, spent bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone() != nil {
		return nil
	}
	b.spent.Store(spent)
	ctx, cancel := begun(ctx)
	defer cancel()
	err := q.policies.contained(b, func() error {
		next, err := q.policies.shared.of(b).compile()
		if err != nil {
			return err
		}
		return q.policies.enforce(ctx, b, next)
	})
	if err != nil {
		b.spent.Store(!spent)
	}
	return err
}

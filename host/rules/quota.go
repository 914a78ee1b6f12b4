package rules

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/handover"
	"boxgate/host/meter"
	"boxgate/host/state"
	"boxgate/internal/required"
	"boxgate/policy"
	"boxgate/store"
)

// quotaPace is how often it is looked how much boxes have transferred.
const quotaPace = time.Second

// Quota cuts off the boxes that have sent and received as many bytes as they may in a period, until it is over: policies
// are withheld from them, and visitors of their public URLs are refused.
type Quota struct {
	before   *handover.Predecessor
	log      *zap.Logger
	meter    *meter.Meter
	boxes    *state.Table
	policies *Service
	visitors interface{ CloseBox(policy.BoxID) } // of public URLs
}

// QuotaConfig has the parts of a [Quota].
type QuotaConfig struct {
	Log      *zap.Logger
	Meter    *meter.Meter
	Boxes    *state.Table
	Rules    *Service
	Visitors interface{ CloseBox(policy.BoxID) } // of public URLs
	Before   *handover.Predecessor               `required:"false"`
}

// NewQuota makes the quota; it cuts nothing off before [Quota.Run].
func NewQuota(c QuotaConfig) (*Quota, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	return &Quota{before: c.Before, log: c.Log, meter: c.Meter, boxes: c.Boxes, policies: c.Rules, visitors: c.Visitors}, nil
}

// Run looks at all boxes until ctx ends.
func (q *Quota) Run(ctx context.Context) {
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
func (q *Quota) look(ctx context.Context, changes *sync.WaitGroup) {
	var limited []policy.BoxID
	all := q.boxes.Unsorted()
	for _, b := range all {
		if q.most(b) != policy.Unlimited {
			limited = append(limited, b.ID)
		}
	}
	var used map[policy.BoxID]uint64
	var err error
	if len(limited) > 0 { // else nothing need be read
		used, err = q.meter.Transferred(limited...)
	}
	if err != nil { // those that are known to have used up theirs are cut off
		q.log.Error("what boxes have transferred since the last look is not known; it is tried again", zap.Error(err))
	}
	for _, b := range all {
		spent := exhausted(used[b.ID], q.most(b))
		if spent != b.Spent.Load() && b.Sparing.CompareAndSwap(false, true) {
			changes.Go(func() {
				defer b.Sparing.Store(false)
				q.set(ctx, b, spent)
			})
		}
	}
}

// most returns how many bytes a box may send and receive in a period.
func (q *Quota) most(b *state.Box) int64 {
	return b.Limits.Of(policy.LimitQuota, q.boxes.Limits[policy.LimitQuota])
}

func exhausted(used uint64, most int64) bool { return most != policy.Unlimited && used >= uint64(most) }

// SpentOf says which stored boxes have used up their quota. Where the counters cannot be read, those have that had when they were
// read last.
func (q *Quota) SpentOf(list []store.Box) map[policy.BoxID]bool {
	out, most := map[policy.BoxID]bool{}, map[policy.BoxID]int64{}
	for _, r := range list {
		if n := api.BoxLimits(r.Limits).Of(q.boxes.Limits)[policy.LimitQuota]; n != policy.Unlimited {
			most[r.ID] = n
		}
	}
	used, err := q.meter.Transferred(slices.Collect(maps.Keys(most))...)
	if err != nil {
		q.log.Warn("what boxes have transferred lately is not known yet", zap.Error(err))
	}
	for id, n := range used {
		out[id] = exhausted(n, most[id])
	}
	return out
}

// set cuts a box off, or takes that back. What cannot be put in force is tried again.
func (q *Quota) set(ctx context.Context, b *state.Box, spent bool) {
	id := zap.String("box", string(b.ID))
	if err := q.putInForce(ctx, b, spent); err != nil {
		q.log.Error("a box's quota could not be put in force; it is tried again", id, zap.Bool("used_up", spent), zap.Error(err))
		return
	}
	if !spent {
		q.log.Info("a box that had used up its quota goes on: a new period has begun, or its quota was raised", id)
		return
	}
	q.visitors.CloseBox(b.ID) // without the box's lock, for which a visitor may be waiting
	q.before.Tell(handover.Message{Kind: handover.URLs, Box: b.ID})
	q.log.Warn("a box has used up its quota, and is cut off until the next period", id, zap.Int64("quota", q.most(b)))
}

// putInForce changes what the box may do. From its first step on, whatever else changes the box's policy regards it.
func (q *Quota) putInForce(ctx context.Context, b *state.Box, spent bool) error {
	b.Lock()
	defer b.Unlock()
	if b.Gone() != nil {
		return nil
	}
	b.Spent.Store(spent)
	ctx, cancel := change.Begun(ctx)
	defer cancel()
	err := q.policies.contained(b, func() error {
		next, err := q.policies.shared.of(b).compile()
		if err != nil {
			return err
		}
		return q.policies.Enforce(ctx, b, next)
	})
	if err != nil {
		b.Spent.Store(!spent)
	}
	return err
}

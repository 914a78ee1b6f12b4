package rules

import (
	"context"
	"errors"
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

// quotaInterval is the interval at which Quota reads the traffic counters.
const quotaInterval = time.Second

// Quota cuts off boxes that have used up their traffic quota until the next period: it withholds their policies and
// refuses visitors of their public URLs.
type Quota struct {
	before   *handover.Predecessor
	log      *zap.Logger
	meter    *meter.Meter
	boxes    *state.Table
	policies *Service
	visitors interface{ CloseBox(policy.BoxID) } // of public URLs
}

// QuotaConfig configures a [Quota].
type QuotaConfig struct {
	Log      *zap.Logger
	Meter    *meter.Meter
	Boxes    *state.Table
	Rules    *Service
	Visitors interface{ CloseBox(policy.BoxID) } // of public URLs
	Before   *handover.Predecessor               `required:"false"`
}

// NewQuota returns a Quota; [Quota.Run] starts it.
func NewQuota(c QuotaConfig) (*Quota, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	return &Quota{before: c.Before, log: c.Log, meter: c.Meter, boxes: c.Boxes, policies: c.Rules, visitors: c.Visitors}, nil
}

// Run checks all boxes periodically until ctx is done.
func (q *Quota) Run(ctx context.Context) {
	var changes sync.WaitGroup
	defer changes.Wait()
	tick := time.NewTicker(quotaInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			q.checkBoxes(ctx, &changes)
		}
	}
}

// checkBoxes starts cutting off boxes that have used up their quota, and reconnecting boxes that have a new one. Each box
// changes in its own goroutine.
func (q *Quota) checkBoxes(ctx context.Context, changes *sync.WaitGroup) {
	var limited []policy.BoxID
	all := q.boxes.Unsorted()
	for _, b := range all {
		if q.quotaOf(b) != policy.Unlimited {
			limited = append(limited, b.ID)
		}
	}
	var used map[policy.BoxID]uint64
	var err error
	if len(limited) > 0 { // else there is no counter to read
		used, err = q.meter.Transferred(limited...)
	}
	if err != nil { // boxes already known to be over their quota are still cut off
		q.log.Error("the transferred bytes of boxes could not be read; retrying", zap.Error(err))
	}
	for _, b := range all {
		spent := exhausted(used[b.ID], q.quotaOf(b))
		if spent != b.Spent.Load() && b.ChangingSpent.CompareAndSwap(false, true) {
			changes.Go(func() {
				defer b.ChangingSpent.Store(false)
				q.setSpent(ctx, b, spent)
			})
		}
	}
}

// quotaOf returns the number of bytes that a box may transfer in a period.
func (q *Quota) quotaOf(b *state.Box) int64 {
	return b.Limits.Of(policy.LimitQuota, q.boxes.Limits[policy.LimitQuota])
}

func exhausted(used uint64, most int64) bool { return most != policy.Unlimited && used >= uint64(most) }

// SpentOf reports which stored boxes have used up their quota. For counters that cannot be read, it uses the last values
// read.
func (q *Quota) SpentOf(list []store.Box) map[policy.BoxID]bool {
	out, most := map[policy.BoxID]bool{}, map[policy.BoxID]int64{}
	for _, r := range list {
		if n := api.BoxLimits(r.Limits).Effective(q.boxes.Limits)[policy.LimitQuota]; n != policy.Unlimited {
			most[r.ID] = n
		}
	}
	used, err := q.meter.Transferred(slices.Collect(maps.Keys(most))...)
	if err != nil {
		q.log.Warn("the transferred bytes of boxes could not be read", zap.Error(err))
	}
	for id, n := range used {
		out[id] = exhausted(n, most[id])
	}
	return out
}

// setSpent cuts a box off, or reconnects it. If it cannot be cut off, it is closed; if it cannot be reconnected, the next
// check retries.
func (q *Quota) setSpent(ctx context.Context, b *state.Box, spent bool) {
	id := zap.String("box", string(b.ID))
	err := q.applySpent(ctx, b, spent)
	if err != nil {
		q.log.Error("a box's quota could not be applied", id, zap.Bool("used_up", spent), zap.Error(err))
	}
	switch {
	case !spent && err != nil:
		return
	case !spent:
		q.log.Info("a box that had used up its quota is connected again: a new period has begun, or its quota was raised", id)
		return
	}
	q.visitors.CloseBox(b.ID) // after unlocking the box: a visitor may be waiting for its lock
	q.before.SendOrder(handover.Message{Kind: handover.URLs, Box: b.ID})
	q.log.Warn("a box has used up its quota, and is cut off until the next period", id, zap.Int64("quota", q.quotaOf(b)))
}

// applySpent recompiles and applies the box's policy with spent set. From its first step on, other changes of the policy
// see spent too. If a box that has used up its quota cannot take that policy, it is closed, since the one in force is open.
func (q *Quota) applySpent(ctx context.Context, b *state.Box, spent bool) error {
	b.Lock()
	defer b.Unlock()
	if b.Gone() != nil {
		return nil
	}
	b.Spent.Store(spent)
	ctx, cancel := change.Detach(ctx)
	defer cancel()
	err := q.policies.contain(b, func() error {
		next, err := q.policies.shared.inputsOf(b).compile()
		if err != nil {
			return err
		}
		return q.policies.Enforce(ctx, b, next)
	})
	switch {
	case err == nil:
		return nil
	case !spent:
		b.Spent.Store(true)
		return err
	case !b.Connected(): // closed, or compiled again when it is connected
		return err
	}
	return errors.Join(err, q.policies.applyStored(b))
}

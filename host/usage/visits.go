package usage

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"boxgate/api"
	"boxgate/host/boxdial"
	"boxgate/host/state"
	"boxgate/ingress"
	"boxgate/policy"
)

// Visits wakes boxes for their public URLs. It implements [boxgate/ingress.Boxes].
type Visits struct {
	boxes *state.Table
	reach *boxdial.Boxes
	wake  func(context.Context, policy.BoxID) error
}

// NewVisits returns a Visits. wake wakes a box.
func NewVisits(boxes *state.Table, r *boxdial.Boxes, wake func(context.Context, policy.BoxID) error) *Visits {
	return &Visits{boxes, r, wake}
}

// Enter implements [boxgate/ingress.Boxes]. It admits visitors of unknown boxes, for which dialling fails later.
func (v *Visits) Enter(id policy.BoxID, port uint16) bool {
	b, err := v.boxes.Find(id)
	return err != nil || !b.Spent.Load() && (b.Gate.Visit(port) || b.Attached != nil)
}

// Leave implements [boxgate/ingress.Boxes].
func (v *Visits) Leave(id policy.BoxID) {
	if b, err := v.boxes.Find(id); err == nil {
		b.Gate.Depart()
	}
}

// Moved implements [boxgate/ingress.Boxes].
func (v *Visits) Moved(id policy.BoxID, byVisitor bool) {
	b, err := v.boxes.Find(id)
	if err != nil {
		return
	}
	b.Gate.Touch(time.Now())
	if byVisitor && !b.Gate.IsOpen() && b.Attached == nil && b.Waking.CompareAndSwap(false, true) {
		go func() {
			defer b.Waking.Store(false)
			_ = v.wake(context.Background(), id)
		}()
	}
}

// Wake implements [boxgate/ingress.Boxes].
func (v *Visits) Wake(ctx context.Context, id policy.BoxID, port uint16) error {
	b, err := v.boxes.Find(id)
	if err == nil && b.Spent.Load() {
		return ingress.ErrSpent
	}
	used := v.wake(ctx, id)
	if err != nil {
		b, err = v.boxes.Find(id)
	}
	if used != nil {
		if err == nil && b.Shown.Load().Status == api.StatusError {
			used = fmt.Errorf("%w: %w", ingress.ErrDown, used)
		}
		return used
	}
	if err != nil {
		return err
	}
	for b.Gate.Starting(time.Now(), port) {
		conn, err := v.reach.Dial(ctx, id, netip.AddrPortFrom(b.V4, port))
		if err == nil {
			b.Gate.Listening(port)
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(listenInterval):
		}
	}
	return nil
}

// listenInterval is the interval at which a port of a newly started box is probed.
const listenInterval = 50 * time.Millisecond

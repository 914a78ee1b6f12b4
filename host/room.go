package host

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/launcher"
	"boxgate/policy"
)

// roomKeeper pauses boxes that write while the disk of the state directory has only what is kept for the gateway.
type roomKeeper struct {
	log    *zap.Logger
	usage  *usage
	writes func(policy.BoxID) launcher.Writes
	left   func() int64 // bytes that are free

	looked time.Time
	free   int64                  // at that look
	falls  float64                // bytes a second that were used before it
	before map[policy.BoxID]int64 // what boxes had written at the first look without room; nil: there is room
	paused map[policy.BoxID]bool  // since there was no room
}

const (
	// roomPace is how often it is looked whether there is room.
	roomPace = 100 * time.Millisecond
	// roomAhead is for how long there must be room, at the rate at which the disk fills.
	roomAhead = time.Second
	// writesMost is how much a box may write, in bytes, while there is no room.
	writesMost = 1 << 20
)

// run looks after the disk until ctx ends.
func (k *roomKeeper) run(ctx context.Context) {
	tick := time.NewTicker(roomPace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			k.look(ctx)
		}
	}
}

// ahead returns how many bytes the disk fills by within roomAhead, or until the next look if that comes late: at the lesser of the rates
// before the last two looks, as a file that is made and removed again fills no disk.
func (k *roomKeeper) ahead() int64 {
	now, free := time.Now(), k.left()
	since, used := now.Sub(k.looked), k.free-free
	k.looked, k.free = now, free
	if since <= 0 || since > time.Minute { // or it is the first look
		k.falls = 0
		return 0
	}
	falls := max(float64(used)/since.Seconds(), 0)
	rate := min(falls, k.falls)
	k.falls = falls
	return int64(rate * max(roomAhead, 3*since).Seconds())
}

// look pauses the boxes that write, if there is no room, or resumes those that it has paused.
func (k *roomKeeper) look(ctx context.Context) {
	var changing sync.WaitGroup
	defer changing.Wait()
	if k.usage.room(k.ahead()) == nil {
		for id := range k.paused {
			changing.Go(func() { _ = k.usage.wake(ctx, id) }) // it is gone, or somebody else's use wakes it
		}
		k.before, k.paused = nil, nil
		return
	}
	if k.before == nil {
		k.before, k.paused = map[policy.BoxID]int64{}, map[policy.BoxID]bool{}
	}
	for _, b := range k.usage.boxes.unsorted() {
		if b.attached != nil || b.shown.Load().Status != api.StatusIdle {
			continue
		}
		w := k.writes(b.ID)
		written := w.Pending + w.Total
		if before, known := k.before[b.ID]; !known || written < before { // processes that have ended are no longer counted
			k.before[b.ID] = written
		} else if written-before >= writesMost {
			k.paused[b.ID] = true
			changing.Go(func() { k.usage.pauseFull(ctx, b) })
		}
	}
}

// pauseFull pauses a box that fills the disk, whoever uses it. It cannot be resumed until there is room.
func (u *usage) pauseFull(ctx context.Context, b *box) {
	if !b.mu.TryLock() {
		return // it is being changed; the next look finds it
	}
	defer b.mu.Unlock()
	if u.boxes.lent.Load() || b.deleted || b.moving != nil || b.status != api.StatusIdle {
		return
	}
	b.filling = true
	if err := u.pause(ctx, b); err != nil {
		return // which is logged, and tried again
	}
	u.log.Warn("a box is paused, because it writes and the disk of state_dir has only what is kept for the gateway", zap.String("box", string(b.ID)))
	u.history.Log(b.ID, "error", "system", "the box is paused: the disk of the host is full")
}

// mayGoOn refuses to resume a box that was paused because it fills the disk, until there is room. The caller holds b.mu.
func (u *usage) mayGoOn(b *box) error {
	if !b.filling {
		return nil
	}
	if err := u.room(0); err != nil {
		return api.Errorf(api.ErrFull, "the box is paused because it was filling the disk: %w", err)
	}
	b.filling = false
	return nil
}

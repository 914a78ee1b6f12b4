package usage

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/state"
	"boxgate/launcher"
	"boxgate/policy"
)

// DiskGuard pauses boxes that write while the disk of the state directory has only what is kept for the gateway.
type DiskGuard struct {
	usage  *Service
	writes func(policy.BoxID) launcher.Writes
	disk   launcher.Reserve

	looked time.Time              // at the rate
	free   int64                  // at that look
	falls  float64                // bytes a second that were used before it
	rate   float64                // the lesser of falls and the one before, in bytes a second
	before map[policy.BoxID]int64 // what boxes had written when there was last room, or at the first look without; nil: there is plenty
	paused map[policy.BoxID]bool  // since there was plenty of room
}

const (
	// roomPace is how often the disk is looked at while there is plenty of room.
	roomPace = 100 * time.Millisecond
	// roomNearPace is how often the disk and the writes of boxes are looked at otherwise, if a look takes less than a tenth of that.
	roomNearPace = 20 * time.Millisecond
	// roomAhead is for how long there must be room, at the rate at which the disk fills.
	roomAhead = time.Second
	// roomNear is how much more than is kept, in bytes, is not plenty of room; the amount that is kept, if that is less.
	roomNear = 64 << 20
	// writesMost is how much a box may write, in bytes, while there is no room.
	writesMost = 1 << 20
)

// NewDiskGuard looks after a disk. writes returns how much a box has written.
func NewDiskGuard(u *Service, writes func(policy.BoxID) launcher.Writes, disk launcher.Reserve) *DiskGuard {
	return &DiskGuard{usage: u, writes: writes, disk: disk}
}

// Run looks after the disk until ctx ends.
func (k *DiskGuard) Run(ctx context.Context) {
	next := time.NewTimer(roomPace)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
			began := time.Now()
			k.look(ctx)
			pace := roomPace
			if k.before != nil {
				pace = roomNearPace
			}
			next.Reset(max(pace, 10*time.Since(began))) // of many boxes, a look reads many files
		}
	}
}

// ahead returns how many bytes the disk fills by within roomAhead, or until the next look if that comes late: at the lesser of the last
// two rates, as a file that is made and removed again fills no disk. A rate is that of roomPace, or of more.
func (k *DiskGuard) ahead() int64 {
	now := time.Now()
	since := now.Sub(k.looked)
	if since < roomPace {
		return int64(k.rate * roomAhead.Seconds())
	}
	free := k.disk.Left()
	falls := max(float64(k.free-free)/since.Seconds(), 0)
	if since > time.Minute { // or it is the first look
		falls = 0
	}
	k.rate = min(falls, k.falls)
	k.looked, k.free, k.falls = now, free, falls
	return int64(k.rate * max(roomAhead, 3*since).Seconds())
}

// look pauses the boxes that write, if there is no room, or resumes those that it has paused, if there is plenty. In between it only
// notes what boxes have written, so that the first look without room finds who writes.
func (k *DiskGuard) look(ctx context.Context) {
	var changing sync.WaitGroup
	defer changing.Wait()
	ahead := k.ahead()
	if k.usage.room(ahead+min(roomNear, k.disk.Kept())) == nil {
		for id := range k.paused {
			changing.Go(func() { _ = k.usage.Wake(ctx, id) }) // it is gone, or somebody else's use wakes it
		}
		k.before, k.paused = nil, nil
		return
	}
	if k.before == nil {
		k.before, k.paused = map[policy.BoxID]int64{}, map[policy.BoxID]bool{}
	}
	full := k.usage.room(ahead) != nil
	for _, b := range k.usage.boxes.Unsorted() {
		if b.Attached != nil || b.Shown.Load().Status != api.StatusIdle {
			continue
		}
		if w := k.writes(b.ID); k.fills(b.ID, w.Pending+w.Total, full) {
			k.paused[b.ID] = true
			changing.Go(func() { k.usage.pauseFull(ctx, b) })
		}
	}
}

// fills notes how many bytes a box has written, and reports whether it fills a full disk: it has written writesMost or more since there
// was last room.
func (k *DiskGuard) fills(id policy.BoxID, written int64, full bool) bool {
	before, known := k.before[id]
	if !known || !full || written < before { // processes that have ended are no longer counted
		k.before[id] = written
		return false
	}
	return written-before >= writesMost
}

// pauseFull pauses a box that fills the disk, whoever uses it. It cannot be resumed until there is room.
func (u *Service) pauseFull(ctx context.Context, b *state.Box) {
	if !b.TryLock() {
		return // it is being changed; the next look finds it
	}
	defer b.Unlock()
	if u.boxes.Lent.Load() || b.Deleted || b.Moving != nil || b.Status != api.StatusIdle {
		return
	}
	b.Filling = true
	if err := u.pause(ctx, b); err != nil {
		return // which is logged, and tried again
	}
	u.log.Warn("a box is paused, because it writes and the disk of state_dir has only what is kept for the gateway", zap.String("box", string(b.ID)))
	u.history.Log(b.ID, "error", "system", "the box is paused: the disk of the host is full")
}

// mayGoOn refuses to resume a box that was paused because it fills the disk, until there is room. The caller holds the lock of b.
func (u *Service) mayGoOn(b *state.Box) error {
	if !b.Filling {
		return nil
	}
	if err := u.room(0); err != nil {
		return api.Errorf(api.ErrFull, "the box is paused because it was filling the disk: %w", err)
	}
	b.Filling = false
	return nil
}

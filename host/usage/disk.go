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

// DiskGuard pauses boxes that keep writing when only the gateway's reserve is left on the disk of the state directory.
type DiskGuard struct {
	usage  *Service
	writes func(policy.BoxID) launcher.Writes
	disk   launcher.Reserve

	looked time.Time              // time of the last measurement
	free   int64                  // free bytes at that time
	falls  float64                // bytes per second used up before it
	rate   float64                // the lesser of falls and its previous value, in bytes per second
	before map[policy.BoxID]int64 // bytes that boxes had written while there was last space, or at the first look without; nil: plenty of space
	paused map[policy.BoxID]bool  // boxes paused since there was last plenty of space
}

const (
	// roomPace is the interval of looks while there is plenty of space.
	roomPace = 100 * time.Millisecond
	// roomNearPace is the interval otherwise, if a look takes less than a tenth of it.
	roomNearPace = 20 * time.Millisecond
	// roomAhead is how long the free space must last at the current fill rate.
	roomAhead = time.Second
	// roomNear is the space in bytes above the reserve that counts as scarce; the size of the reserve, if that is less.
	roomNear = 64 << 20
	// writesMost is how many bytes a box may write while there is no space.
	writesMost = 1 << 20
)

// NewDiskGuard returns a guard for disk. writes returns the bytes written by a box.
func NewDiskGuard(u *Service, writes func(policy.BoxID) launcher.Writes, disk launcher.Reserve) *DiskGuard {
	return &DiskGuard{usage: u, writes: writes, disk: disk}
}

// Run guards the disk until ctx is done.
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
			next.Reset(max(pace, 10*time.Since(began))) // with many boxes, a look reads many files
		}
	}
}

// ahead returns the number of bytes by which the disk will fill within roomAhead, or until the next look if that is
// later. It uses the lesser of the last two rates, because a file that is written and removed again does not fill the
// disk. Rates are measured over roomPace or longer.
func (k *DiskGuard) ahead() int64 {
	now := time.Now()
	since := now.Sub(k.looked)
	if since < roomPace {
		return int64(k.rate * roomAhead.Seconds())
	}
	free := k.disk.Left()
	falls := max(float64(k.free-free)/since.Seconds(), 0)
	if since > time.Minute { // or at the first look
		falls = 0
	}
	k.rate = min(falls, k.falls)
	k.looked, k.free, k.falls = now, free, falls
	return int64(k.rate * max(roomAhead, 3*since).Seconds())
}

// look pauses the boxes that write if there is no space, and resumes the boxes it has paused if there is plenty. In
// between it only records the bytes written, so that the first look without space can tell which boxes write.
func (k *DiskGuard) look(ctx context.Context) {
	var changing sync.WaitGroup
	defer changing.Wait()
	ahead := k.ahead()
	if k.usage.room(ahead+min(roomNear, k.disk.Kept())) == nil {
		for id := range k.paused {
			changing.Go(func() { _ = k.usage.Wake(ctx, id) }) // on error it is gone, or its next use wakes it
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

// fills records the bytes written by a box, and reports whether the box fills a full disk: it has written writesMost or
// more since there was last space.
func (k *DiskGuard) fills(id policy.BoxID, written int64, full bool) bool {
	before, known := k.before[id]
	if !known || !full || written < before { // ended processes are no longer counted
		k.before[id] = written
		return false
	}
	return written-before >= writesMost
}

// pauseFull pauses a box that fills the disk, even if it is in use. It cannot be resumed until there is space.
func (u *Service) pauseFull(ctx context.Context, b *state.Box) {
	if !b.TryLock() {
		return // it is being changed; the next look tries again
	}
	defer b.Unlock()
	if u.boxes.Lent.Load() || b.Deleted || b.Moving != nil || b.Status != api.StatusIdle {
		return
	}
	b.Filling = true
	if err := u.pause(ctx, b); err != nil {
		return // logged, and retried by the next look
	}
	u.log.Warn("a box is paused, because it writes and the disk of state_dir has only what is kept for the gateway", zap.String("box", string(b.ID)))
	u.history.Log(b.ID, "error", "system", "the box is paused: the disk of the host is full")
}

// mayGoOn refuses to resume a box that was paused for filling the disk, until there is space. The caller holds the lock
// of b.
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

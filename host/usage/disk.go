package usage

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/firewall"
	"boxgate/host/meter"
	"boxgate/host/state"
	"boxgate/launcher"
	"boxgate/policy"
)

// DiskGuard pauses boxes that keep writing when only the gateway's reserve is left on the disk of the state directory.
type DiskGuard struct {
	usage  *Service
	writes func(policy.BoxID) launcher.Writes
	disk   launcher.Reserve

	measuredAt    time.Time              // time of the last measurement
	free          int64                  // free bytes at that time
	previousRate  float64                // bytes per second used up before it
	rate          float64                // the lesser of the last two rates, in bytes per second
	writtenBefore map[policy.BoxID]int64 // bytes that boxes had written while there was last space, or at the first look without; nil: plenty of space
	paused        map[policy.BoxID]bool  // boxes paused since there was last plenty of space
}

const (
	// spaceInterval is the interval of looks while there is plenty of space.
	spaceInterval = 100 * time.Millisecond
	// scarceInterval is the interval otherwise, if a look takes less than a tenth of it.
	scarceInterval = 20 * time.Millisecond
	// spaceAhead is how long the free space must last at the current fill rate.
	spaceAhead = time.Second
	// scarceSpace is the space in bytes above the reserve that counts as scarce; the size of the reserve, if that is less.
	scarceSpace = 64 << 20
	// mostWritten is how many bytes a box may write while there is no space.
	mostWritten = 1 << 20
)

// NewDiskGuard returns a guard for disk. writes returns the bytes written by a box.
func NewDiskGuard(u *Service, writes func(policy.BoxID) launcher.Writes, disk launcher.Reserve) *DiskGuard {
	return &DiskGuard{usage: u, writes: writes, disk: disk}
}

// Run guards the disk until ctx is done.
func (k *DiskGuard) Run(ctx context.Context) {
	next := time.NewTimer(spaceInterval)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
			began := time.Now()
			k.checkSpace(ctx)
			pace := spaceInterval
			if k.writtenBefore != nil {
				pace = scarceInterval
			}
			next.Reset(max(pace, 10*time.Since(began))) // with many boxes, a look reads many files
		}
	}
}

// fillAhead returns the number of bytes by which the disk will fill within spaceAhead, or until the next look if that is
// later. It uses the lesser of the last two rates, because a file that is written and removed again does not fill the
// disk. Rates are measured over spaceInterval or longer.
func (k *DiskGuard) fillAhead() int64 {
	now := time.Now()
	since := now.Sub(k.measuredAt)
	if since < spaceInterval {
		return int64(k.rate * spaceAhead.Seconds())
	}
	free := k.disk.FreeBytes()
	falls := max(float64(k.free-free)/since.Seconds(), 0)
	if since > time.Minute { // or at the first look
		falls = 0
	}
	k.rate = min(falls, k.previousRate)
	k.measuredAt, k.free, k.previousRate = now, free, falls
	return int64(k.rate * max(spaceAhead, 3*since).Seconds())
}

// checkSpace pauses the boxes that write if there is no space, and resumes the boxes it has paused if there is plenty. In
// between it only records the bytes written, so that the first look without space can tell which boxes write.
func (k *DiskGuard) checkSpace(ctx context.Context) {
	var changing sync.WaitGroup
	defer changing.Wait()
	ahead := k.fillAhead()
	if k.usage.space(ahead+min(scarceSpace, k.disk.ReservedBytes())) == nil {
		for id := range k.paused {
			if b, err := k.usage.boxes.Find(id); err == nil && !b.Shown.Load().PausedAtEnd { // it was not used, which auto_resume needs
				changing.Go(func() { _ = k.usage.Wake(ctx, id) }) // on error it is gone, or its next use wakes it
			}
		}
		k.writtenBefore, k.paused = nil, nil
		return
	}
	if k.writtenBefore == nil {
		k.writtenBefore, k.paused = map[policy.BoxID]int64{}, map[policy.BoxID]bool{}
	}
	full := k.usage.space(ahead) != nil
	for _, b := range k.usage.boxes.Unsorted() {
		if b.Attached != nil || b.Shown.Load().Status != api.StatusIdle {
			continue
		}
		if w := k.writes(b.ID); k.isFilling(b.ID, w.Pending+w.Total, full) {
			k.paused[b.ID] = true
			changing.Go(func() { k.usage.pauseFull(ctx, b) })
		}
	}
}

// isFilling records the bytes written by a box, and reports whether the box fills a full disk: it has written mostWritten or
// more since there was last space.
func (k *DiskGuard) isFilling(id policy.BoxID, written int64, full bool) bool {
	before, known := k.writtenBefore[id]
	if !known || !full || written < before { // ended processes are no longer counted
		k.writtenBefore[id] = written
		return false
	}
	return written-before >= mostWritten
}

// pauseFull pauses a box that fills the disk, even if it is in use. It cannot be resumed until there is space.
func (u *Service) pauseFull(ctx context.Context, b *state.Box) {
	if !b.TryLock() {
		return // it is being changed; the next look tries again
	}
	defer b.Unlock()
	if u.boxes.HandedOver.Load() || b.Deleted || b.StateChange != nil || b.Status != api.StatusIdle {
		return
	}
	b.FilledDisk = true
	if err := u.pause(ctx, b); err != nil {
		return // logged, and retried by the next look
	}
	u.log.Warn("a box is paused, because it writes while only the gateway's reserve is left on the disk of state_dir", zap.String("box", string(b.ID)))
	u.history.Log(b.ID, "error", "system", "the box is paused: the disk of the host is full")
}

// mayGoOn refuses to resume a box that was paused for filling the disk, until there is space. The caller holds the lock
// of b.
func (u *Service) mayGoOn(b *state.Box) error {
	if !b.FilledDisk {
		return nil
	}
	if err := u.space(0); err != nil {
		return api.Errorf(api.ErrFull, "the box is paused because it was filling the disk: %w", err)
	}
	b.FilledDisk = false
	return nil
}

func usageView(u meter.Usage) api.Usage {
	return api.Usage{
		CPU: u.CPU, Memory: u.Memory, PeakMemory: u.PeakMemory, BytesIn: u.In, BytesOut: u.Out, OOMKills: u.OOMKills,
		DiskBytes: u.Disk.Bytes, DiskFiles: u.Disk.Inodes, DiskWhole: u.Disk.Whole, DiskCountedAt: u.Disk.At,
	}
}

// kernelCounters reads the kernel's counters of boxes.
type kernelCounters struct {
	boxes     *state.Table
	firewall  *firewall.Firewall
	sandboxes state.Sandboxes
	boot      string // boot ID of the host: identifiers may repeat after a reboot
	remote    func(policy.BoxID) (in, out uint64, ok bool)
	run       string // of this process: the counters of remote boxes begin with it
}

// NewCounters returns a reader of the kernel's counters and of the remote boxes' own, which have no interface.
func NewCounters(boxes *state.Table, f *firewall.Firewall, s state.Sandboxes, remote func(policy.BoxID) (in, out uint64, ok bool)) meter.Kernel {
	return kernelCounters{boxes, f, s, bootID(), remote, "remote " + time.Now().Format(time.RFC3339Nano)}
}

// ReadLinks implements [meter.Kernel].
func (k kernelCounters) ReadLinks(ids []policy.BoxID) (map[policy.BoxID]meter.Reading, error) {
	interfaces, err := k.firewall.Counters(ids)
	all := map[policy.BoxID]meter.Reading{}
	for id, t := range interfaces {
		all[id] = meter.Reading{LinkLife: k.boot + "/" + t.Life, In: t.In, Out: t.Out}
	}
	for _, id := range ids {
		if in, out, ok := k.remote(id); ok {
			all[id] = meter.Reading{LinkLife: k.run, In: in, Out: out}
		}
	}
	return all, err
}

// Read implements [meter.Kernel].
func (k kernelCounters) Read(ids []policy.BoxID) (map[policy.BoxID]meter.Reading, error) {
	all, err := k.ReadLinks(ids)
	for _, id := range ids {
		r := all[id]
		used, uerr := k.cgroup(id)
		if uerr == nil {
			r.GroupLife, r.CPU, r.OOMKills = k.boot+"/"+used.Life, used.CPU, used.OOMKills
			r.Memory, r.PeakMemory = used.Memory, used.PeakMemory
		} else if !errors.Is(uerr, launcher.ErrNoUsage) {
			err = errors.Join(err, uerr)
		}
		all[id] = r
	}
	return all, err
}

// cgroup reads the cgroup of a launched box.
func (k kernelCounters) cgroup(id policy.BoxID) (launcher.Usage, error) {
	if b, err := k.boxes.Find(id); err != nil || b.Attached != nil {
		return launcher.Usage{}, launcher.ErrNoUsage
	}
	return k.sandboxes.Usage(id)
}

// Disk implements [meter.Kernel].
func (k kernelCounters) Disk(ctx context.Context, id policy.BoxID) (meter.Disk, error) {
	if b, err := k.boxes.Find(id); err != nil || b.Attached != nil {
		return meter.Disk{Whole: true}, err
	}
	used, err := k.sandboxes.DiskUsage(ctx, id)
	return meter.Disk{Bytes: used.Bytes, Inodes: used.Inodes, Whole: used.Whole}, err
}

// bootID returns the ID of the host's current boot.
func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // if unreadable, a restarted counter is only detected by a smaller value
	return strings.TrimSpace(string(id))
}

package usage

import (
	"context"
	"errors"
	"os"
	"strings"

	"boxgate/api"
	"boxgate/firewall"
	"boxgate/host/meter"
	"boxgate/host/state"
	"boxgate/launcher"
	"boxgate/policy"
)

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
}

// NewCounters returns a reader of the kernel's counters.
func NewCounters(boxes *state.Table, f *firewall.Firewall, s state.Sandboxes) meter.Kernel {
	return kernelCounters{boxes, f, s, bootID()}
}

// ReadLinks implements [meter.Kernel].
func (k kernelCounters) ReadLinks(ids []policy.BoxID) (map[policy.BoxID]meter.Reading, error) {
	interfaces, err := k.firewall.Counters(ids)
	all := map[policy.BoxID]meter.Reading{}
	for id, t := range interfaces {
		all[id] = meter.Reading{LinkLife: k.boot + "/" + t.Life, In: t.In, Out: t.Out}
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

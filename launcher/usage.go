package launcher

import (
	"context"

	"boxgate/launcher/cgroup"
	"boxgate/launcher/files"
	"boxgate/policy"
)

// Usage is what the processes of a box have used since its control group was made.
type Usage = cgroup.Usage

// ErrNoUsage: the box has no control group.
var ErrNoUsage = cgroup.ErrGone

// Usage returns what the processes of a box have used since its control group was made.
func (l *Launcher) Usage(id policy.BoxID) (Usage, error) { return l.cgroup(id).Usage() }

// Writes are what the processes of a box write to disks.
type Writes = cgroup.Writes

// Writes returns what the processes of a box write to disks.
func (l *Launcher) Writes(id policy.BoxID) Writes { return l.cgroup(id).Writes() }

// DiskUsage returns what the box has written to its root. It may look at millions of files.
func (l *Launcher) DiskUsage(ctx context.Context, id policy.BoxID) (files.Usage, error) {
	return files.DiskUsage(ctx, l.dirs.upper(id))
}

// OnEnd has f called before the control group of a box is removed, with all that the kernel has counted of it. f must not call
// the launcher for a change of the box. Call OnEnd once, before any box is known.
func (l *Launcher) OnEnd(f func(policy.BoxID)) { l.ending = f }

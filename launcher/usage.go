package launcher

import (
	"context"

	"boxgate/launcher/cgroup"
	"boxgate/launcher/files"
	"boxgate/policy"
)

// Usage is the resource usage of a box's processes since its control group was created.
type Usage = cgroup.Usage

// ErrNoUsage is returned for a box without a control group.
var ErrNoUsage = cgroup.ErrGone

// Usage returns the resource usage of a box's processes since its control group was created.
func (l *Launcher) Usage(id policy.BoxID) (Usage, error) { return l.cgroup(id).Usage() }

// Writes counts the disk writes of a box's processes.
type Writes = cgroup.Writes

// Writes returns the disk writes of a box's processes.
func (l *Launcher) Writes(id policy.BoxID) Writes { return l.cgroup(id).Writes() }

// DiskUsage returns the disk usage of the box's writable layer. It may have to stat millions of files.
func (l *Launcher) DiskUsage(ctx context.Context, id policy.BoxID) (files.Usage, error) {
	return files.DiskUsage(ctx, l.dirs.upper(id))
}

// OnGroupRemoval sets a function that is called before the control group of a box is removed, while the kernel's counters can still
// be read. f must not call methods that change the box. Call OnGroupRemoval once, before any box exists.
func (l *Launcher) OnGroupRemoval(f func(policy.BoxID)) { l.onEnd = f }

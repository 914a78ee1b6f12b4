package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	runc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"

	"boxgate/internal/fault"
	"boxgate/launcher/namespace"
	"boxgate/launcher/overlay"
	"boxgate/policy"
)

// Delete kills all processes of a box and removes it: container, control group, mounts, network namespace, and last its
// record and files. So no process is left when the namespace goes, and an interrupted Delete can be repeated. Deleting a
// box that does not exist returns nil.
//
// Once begun it continues even if ctx ends, for at most cleanupTimeout. Files are only moved to the trash, because removing
// millions of them can take minutes.
func (l *Launcher) Delete(ctx context.Context, id policy.BoxID) error {
	if err := checkID(id); err != nil {
		return err
	}
	if _, starting := l.starting.Load(id); starting {
		_ = l.cgroup(id).Kill() // frees the lock immediately, even if the box stalls the runtime
	}
	defer l.lock(id)()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	return l.removeBox(ctx, id)
}

// removeBox does the work of Delete; the caller holds the box's lock.
func (l *Launcher) removeBox(ctx context.Context, id policy.BoxID) error {
	r, _ := l.loadRecord(id) // without a record there is no disk limit to undo
	return runSteps(id, "removed",
		func() error { return l.removeKernelState(ctx, id) },
		func() error { return l.dirs.freeDisk(id, r.Project) },
		func() error { return l.moveToTrash(id) },
		func() error { l.images.Release(l.dirs.box(id)); return nil },
		func() error { return fault.At(ctx, "remove: files in the trash") },
	)
}

// removeKernelState kills the processes of a box and removes all its kernel state. The caller holds the box's lock.
func (l *Launcher) removeKernelState(ctx context.Context, id policy.BoxID) error {
	defer l.background.CloseAll(id)
	defer l.motion.AllowStarts(id)
	defer l.branches.Forget(l.cgroup(id))
	return runSteps(id, "stopped",
		func() error { return l.removeContainer(ctx, id) },
		func() error { return fault.At(ctx, "remove: processes ended") },
		func() error { return l.cgroup(id).KillAndRemove(ctx) },
		func() error { return overlay.Unmount(l.dirs.mounts(id)) },
		func() error { return l.removeMountPoints(id) },
		func() error { return l.removePins(id) },
		func() error { return fault.At(ctx, "remove: namespaces gone") },
	)
}

// runSteps runs the steps in order, up to the first error.
func runSteps(id policy.BoxID, what string, steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("box %s cannot be %s: %w", id, what, err)
		}
	}
	return nil
}

// removeMountPoints removes the directories that mountRoot made. They must be empty: if not, something is still mounted
// there, and removing its files would be worse than failing.
func (l *Launcher) removeMountPoints(id policy.BoxID) error {
	points, err := os.ReadDir(l.dirs.mounts(id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dirs := []string{}
	for _, p := range points {
		dirs = append(dirs, filepath.Join(l.dirs.mounts(id), p.Name()))
	}
	for _, p := range append(dirs, l.dirs.mounts(id)) {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// removePins unpins the box's namespaces, first the network namespace, which is owned by the user namespace.
func (l *Launcher) removePins(id policy.BoxID) error {
	if err := namespace.Unpin(l.dirs.pin(id)); err != nil {
		return err
	}
	return namespace.Unpin(l.dirs.userPin(id))
}

// removeContainer kills the container's processes and deletes it from the runtime. A frozen box is killed before it is
// thawed, so that it never runs again.
func (l *Launcher) removeContainer(ctx context.Context, id policy.BoxID) error {
	if !l.isContainer(id) {
		return nil
	}
	_ = l.runc.Kill(ctx, string(id), int(unix.SIGKILL), nil) // fails if it has already ended
	if err := l.cgroup(id).Kill(); err != nil {
		return err
	}
	if l.onEnd != nil {
		l.onEnd(id)
	}
	err := l.runc.Delete(ctx, string(id), &runc.DeleteOpts{Force: true})
	if err == nil {
		return nil
	}
	// The runtime cannot delete a container whose state file it cannot read, such as one truncated by a power failure.
	// Clearing the control group kills its processes.
	if cerr := l.cgroup(id).KillAndRemove(ctx); cerr != nil {
		return errors.Join(err, cerr)
	}
	var errs []error
	for _, path := range append(l.stateFiles(id), l.containerState(id)) {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}

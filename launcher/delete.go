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

// Delete kills everything that runs in a box and removes it: container, control group, mounts, network namespace, and
// last its record and files, so that nothing is running any more when its namespace goes, and an interrupted Delete can
// be repeated. Deleting a box that does not exist returns nil.
//
// Once begun it continues even if ctx ends, for at most half a minute. The files are moved to the trash, because a box
// may have so many that removing them takes minutes.
func (l *Launcher) Delete(ctx context.Context, id policy.BoxID) error {
	if err := checkID(id); err != nil {
		return err
	}
	if _, starting := l.starting.Load(id); starting {
		_ = l.cgroup(id).Kill() // so that the lock is free at once, even if something holds the runtime up
	}
	defer l.lock(id)()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	return l.remove(ctx, id)
}

// remove does the work of Delete; the caller holds the box's lock.
func (l *Launcher) remove(ctx context.Context, id policy.BoxID) error {
	r, _ := l.load(id) // without a record nothing is known to be limited
	return inTurn(id, "removed",
		func() error { return l.clear(ctx, id) },
		func() error { return l.dirs.freeDisk(id, r.Project) },
		func() error { return l.discard(id) },
		func() error { l.images.Release(l.dirs.box(id)); return nil },
		func() error { return fault.At(ctx, "remove: files in the trash") },
	)
}

// clear ends what runs in a box and leaves nothing of it in the kernel; the caller holds the box's lock.
func (l *Launcher) clear(ctx context.Context, id policy.BoxID) error {
	defer l.background.Drop(id)
	defer l.motion.GoOn(id)
	defer l.branches.Drop(l.cgroup(id))
	return inTurn(id, "stopped",
		func() error { return l.removeContainer(ctx, id) },
		func() error { return fault.At(ctx, "remove: processes ended") },
		func() error { return l.cgroup(id).Clear(ctx) },
		func() error { return overlay.Unmount(l.dirs.mounts(id)) },
		func() error { return l.removeMountPoints(id) },
		func() error { return l.removePins(id) },
		func() error { return fault.At(ctx, "remove: namespaces gone") },
	)
}

// inTurn takes steps until one fails.
func inTurn(id policy.BoxID, what string, steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("box %s cannot be %s: %w", id, what, err)
		}
	}
	return nil
}

// removeMountPoints removes the directories that mountRoot made. They are empty; if not, something is still mounted
// there, and emptying that would be worse than failing.
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

// removePins releases the box's namespaces, first that of the network, which belongs to the other.
func (l *Launcher) removePins(id policy.BoxID) error {
	if err := namespace.Unpin(l.dirs.pin(id)); err != nil {
		return err
	}
	return namespace.Unpin(l.dirs.userPin(id))
}

// removeContainer kills the container's processes and makes the runtime forget it. A frozen box is killed before it is
// thawed, so that it never runs again.
func (l *Launcher) removeContainer(ctx context.Context, id policy.BoxID) error {
	if !l.isContainer(id) {
		return nil
	}
	_ = l.runc.Kill(ctx, string(id), int(unix.SIGKILL), nil) // fails if it has ended
	if err := l.cgroup(id).Kill(); err != nil {
		return err
	}
	if l.ending != nil {
		l.ending(id)
	}
	err := l.runc.Delete(ctx, string(id), &runc.DeleteOpts{Force: true})
	if err == nil {
		return nil
	}
	// The runtime cannot delete a container whose state file it cannot read, such as one truncated by a power failure.
	// Its processes die with the control group.
	if cerr := l.cgroup(id).Clear(ctx); cerr != nil {
		return errors.Join(err, cerr)
	}
	var errs []error
	for _, path := range append(l.stateFiles(id), l.containerState(id)) {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}

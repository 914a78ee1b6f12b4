package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"boxgate/launcher/boxfs"
	"boxgate/launcher/namespace"
	"boxgate/policy"

	runc "github.com/containerd/go-runc"
)

// containerState returns the directory of the runtime's state of a box.
func (l *Launcher) containerState(id policy.BoxID) string {
	return filepath.Join(l.dirs.runtimeRoot(), string(id))
}

// State returns the status of one box, or ErrNotFound.
func (l *Launcher) State(ctx context.Context, id policy.BoxID) (Status, error) {
	r, err := l.loadRecord(id)
	if err != nil {
		return Status{}, err
	}
	if !l.isContainer(id) {
		return l.status(r, nil), nil
	}
	ctx, cancel := withRuntimeTimeout(ctx)
	defer cancel()
	c, err := l.runc.State(ctx, string(id))
	if ctx.Err() != nil {
		return Status{}, context.Cause(ctx)
	}
	if err != nil {
		// Either the runtime failed, as on an overloaded host, or it has no state of the box. The first process decides.
		if lives, lerr := l.isAlive(id); lives || lerr != nil {
			return Status{}, fmt.Errorf("the runtime cannot report the state of box %s, whose first process may be running: %w", id, errors.Join(err, lerr))
		}
		c = nil
	}
	return l.status(r, c), nil
}

// isAlive reports whether the first process of a box runs. An error means that this is unknown.
func (l *Launcher) isAlive(id policy.BoxID) (bool, error) {
	handle, err := l.FirstProcess(id)
	if errors.Is(err, ErrNotRunning) || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer handle.Close()
	events := []unix.PollFd{{Fd: int32(handle.Fd()), Events: unix.POLLIN}}
	for {
		ended, err := unix.Poll(events, 0)
		if !errors.Is(err, unix.EINTR) {
			return ended == 0, err
		}
	}
}

// FirstProcess returns a pidfd of the first process of a box, or ErrNotRunning.
func (l *Launcher) FirstProcess(id policy.BoxID) (*os.File, error) {
	pid, err := readPid(filepath.Join(l.dirs.box(id), "pid"))
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("box %s: %w", id, ErrNotRunning)
	}
	if err != nil {
		return nil, err
	}
	handle := os.NewFile(uintptr(fd), "pidfd")
	if !l.runtime.OwnUserNS && !boxfs.InUserNamespace(pid, l.dirs.userPin(id)) { // the process ID was reused
		handle.Close()
		return nil, fmt.Errorf("box %s: %w", id, ErrNotRunning)
	}
	return handle, nil
}

// isStopping reports whether the control group of a box is frozen or freezing. On an error it returns false.
func (l *Launcher) isStopping(id policy.BoxID) bool {
	stopping, err := l.cgroup(id).IsFreezing()
	return err == nil && stopping
}

// List returns all boxes, ordered by ID.
func (l *Launcher) List(ctx context.Context) ([]Status, error) {
	entries, err := os.ReadDir(l.dirs.boxes())
	if err != nil {
		return nil, err
	}
	containers := map[string]*runc.Container{}
	if len(entries) > 0 {
		ctx, cancel := withRuntimeTimeout(ctx)
		defer cancel()
		known, err := l.runc.List(ctx)
		if err != nil {
			return nil, fmt.Errorf("the runtime cannot list the boxes: %w", err)
		}
		for _, c := range known {
			containers[c.ID] = c
		}
	}
	var list []Status
	for _, e := range entries {
		r, err := l.loadRecord(policy.BoxID(e.Name()))
		if err != nil {
			continue // being created or deleted
		}
		list = append(list, l.status(r, containers[e.Name()]))
	}
	return list, nil
}

// status combines the record, the runtime's state (nil if it has no state) and the launcher's own state.
func (l *Launcher) status(r record, c *runc.Container) Status {
	s := Status{ID: r.ID, Image: r.Image, Size: r.Size, NetNS: l.dirs.pin(r.ID), State: StateError}
	if c != nil && !l.runtime.OwnPause && (c.Status == "paused" || c.Status == "running" && l.isStopping(r.ID)) {
		c.Status = "paused" // a runtime may report "running" while one process, such as one that joins the box, is not frozen yet
		if lives, err := l.isAlive(r.ID); err == nil && !lives {
			c = nil // a runtime may report a box as paused whose control group is frozen and empty
		}
	}
	switch {
	case !r.Created:
		s.State = StateCreating
	case c == nil && !namespace.IsPinned(s.NetNS):
		s.State = StateStopped
	case c == nil:
	case c.Status == "paused":
		s.State, s.Pid = StatePaused, c.Pid
	case c.Status == "running":
		s.State, s.Pid = StateIdle, c.Pid
		if l.execs.busy(r.ID) {
			s.State = StateRunning
		}
	}
	return s
}

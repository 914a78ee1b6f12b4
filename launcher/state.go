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

// containerState is where the runtime keeps what it knows of a box.
func (l *Launcher) containerState(id policy.BoxID) string {
	return filepath.Join(l.dirs.runtimeRoot(), string(id))
}

// State returns what one box is doing, or ErrNotFound.
func (l *Launcher) State(ctx context.Context, id policy.BoxID) (Status, error) {
	r, err := l.load(id)
	if err != nil {
		return Status{}, err
	}
	if !l.isContainer(id) {
		return l.status(r, nil), nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	c, err := l.runc.State(ctx, string(id))
	if ctx.Err() != nil {
		return Status{}, context.Cause(ctx)
	}
	if err != nil {
		// Whether the runtime has failed, as on an overloaded host, or there is nothing for it to read, the first process
		// tells.
		if lives, lerr := l.lives(id); lives || lerr != nil {
			return Status{}, fmt.Errorf("the runtime cannot tell the state of box %s, whose first process may run: %w", id, errors.Join(err, lerr))
		}
		c = nil
	}
	return l.status(r, c), nil
}

// lives reports whether the first process of a box runs. The error says why that cannot be told.
func (l *Launcher) lives(id policy.BoxID) (bool, error) {
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
	if !l.runtime.OwnUserNS && !boxfs.Inhabits(pid, l.dirs.userPin(id)) { // the ID has passed on
		handle.Close()
		return nil, fmt.Errorf("box %s: %w", id, ErrNotRunning)
	}
	return handle, nil
}

// isStopping reports whether the control group of a box was stopped, as far as that can be told.
func (l *Launcher) isStopping(id policy.BoxID) bool {
	stopping, err := l.cgroup(id).Stopping()
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
		ctx, cancel := bounded(ctx)
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
		r, err := l.load(policy.BoxID(e.Name()))
		if err != nil {
			continue // going or coming
		}
		list = append(list, l.status(r, containers[e.Name()]))
	}
	return list, nil
}

// status puts together what the record, the runtime (nil: it knows nothing) and the launcher know.
func (l *Launcher) status(r record, c *runc.Container) Status {
	s := Status{ID: r.ID, Image: r.Image, Size: r.Size, NetNS: l.dirs.pin(r.ID), State: StateError}
	if c != nil && !l.runtime.OwnPause && (c.Status == "paused" || c.Status == "running" && l.isStopping(r.ID)) {
		c.Status = "paused" // a runtime may report it as running while one of its processes still moves, as one does that joins it
		if lives, err := l.lives(r.ID); err == nil && !lives {
			c = nil // a runtime may report a box as paused whose group is frozen and empty
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

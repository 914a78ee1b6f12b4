package launcher

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	runc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"

	"boxgate/launcher/boxfs"
	"boxgate/launcher/cgroup"
	"boxgate/launcher/container"
	"boxgate/launcher/files"
	"boxgate/launcher/namespace"
	"boxgate/policy"
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
	s := Status{ID: r.ID, Image: r.Image, Size: r.Size, NetNS: l.dirs.pin(r.ID), State: StateError, Root: r.Root}
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

// cgroup returns the box's control group. It is at the top level, so no parents have to be cleaned up, and its name
// contains the state directory and the box, so that launchers on one host do not conflict.
func (l *Launcher) cgroup(id policy.BoxID) cgroup.Group {
	return cgroup.Group("/boxgate-" + l.tag + "-" + string(id))
}

// GivesRoot reports whether boxes are started with [Config].Root.
func (l *Launcher) GivesRoot() bool { return l.cfg.Root }

// HasOwnStack reports whether boxes have their own network stack; see [oci.Runtime].OwnNetwork.
func (l *Launcher) HasOwnStack() bool { return l.runtime.OwnNetwork }

// runtimeCommand returns a command that runs the runtime and logs its errors to logFile.
func (l *Launcher) runtimeCommand(ctx context.Context, logFile string, args ...string) *exec.Cmd {
	all := append([]string{"--root", l.runc.Root, "--log", logFile, "--log-format", "json"}, l.runc.ExtraArgs...)
	cmd := exec.CommandContext(ctx, l.runc.Command, append(all, args...)...)
	cmd.Dir = l.runc.WorkDir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { // the runtime must not report our readiness to systemd
		return strings.HasPrefix(kv, "NOTIFY_SOCKET=")
	})
	return cmd
}

// stateFiles returns the files, outside its directory, in which the runtime keeps the state of a box.
func (l *Launcher) stateFiles(id policy.BoxID) []string {
	return l.runtime.StateFiles(l.dirs.runtimeRoot(), string(id))
}

// isContainer reports whether the runtime knows a box.
func (l *Launcher) isContainer(id policy.BoxID) bool {
	if len(l.stateFiles(id)) > 0 {
		return true
	}
	_, err := os.Stat(l.containerState(id))
	return !errors.Is(err, fs.ErrNotExist)
}

// startLimited starts the runtime with the limits of a box, unless the runtime enforces them itself.
func (l *Launcher) startLimited(cmd *exec.Cmd, lim container.Limits) error {
	if l.runtime.OwnLimits {
		return cmd.Start()
	}
	return container.StartLimited(cmd, lim)
}

// guest signals the processes of a command in a guest kernel, which the host cannot signal directly.
type guest struct {
	l   *Launcher
	box policy.BoxID
	pid int // in the box; 0: unknown
}

// guestTimeout bounds the runtime's call that sends a signal.
const guestTimeout = 10 * time.Second

// Signal implements [process.Tree].
func (g guest) Signal(sig unix.Signal) error {
	if g.pid == 0 {
		return ErrNotRunning
	}
	ctx, cancel := context.WithTimeout(context.Background(), guestTimeout)
	defer cancel()
	var errs []error
	for _, who := range []string{"--pgid", "--pid"} {
		errs = append(errs, g.l.runtimeCommand(ctx, os.DevNull, "kill", who, strconv.Itoa(g.pid), string(g.box), strconv.Itoa(int(sig))).Run())
	}
	if errs[0] == nil || errs[1] == nil {
		return nil
	}
	return errors.Join(errs...)
}

// Kill implements [process.Tree].
func (g guest) Kill() error { return g.Signal(unix.SIGKILL) }

// whyFailed returns why a call of the runtime failed: the cause of ctx, or [runtimeError].
func whyFailed(ctx context.Context, logFile string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return runtimeError(logFile, err)
}

// runtimeError replaces "exit status 1" by the last error in the runtime's log.
func runtimeError(logFile string, err error) error {
	data, rerr := os.ReadFile(logFile)
	if rerr != nil {
		return err
	}
	last := ""
	for line := range bytes.Lines(data) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && entry.Level == "error" {
			last = entry.Msg
		}
	}
	if last == "" {
		return err
	}
	return errors.New(strings.TrimSpace(last))
}

// Usage is the resource usage of a box's processes since its control group was created.
type Usage = cgroup.Usage

// ErrNoUsage is returned for a box without a control group.
var ErrNoUsage = cgroup.ErrGone

// Usage returns the resource usage of a box's processes since its control group was created.
func (l *Launcher) Usage(id policy.BoxID) (Usage, error) { return l.cgroup(id).Usage() }

// Cache returns how many bytes of a box's memory hold files, which the kernel takes back if it needs the memory; 0 if unknown.
func (l *Launcher) Cache(id policy.BoxID) int64 { return l.cgroup(id).Cache() }

// Capacity are the resources of a box.
type Capacity struct {
	CPUs   float64
	Memory int64 // bytes
	Disk   int64 // bytes; 0: not limited
}

// CapacityOf returns the resources of a box of a size.
func (l *Launcher) CapacityOf(id policy.BoxID, size string) (Capacity, error) {
	limits, err := Size(size).limits()
	if err != nil {
		return Capacity{}, err
	}
	has := Capacity{CPUs: min(float64(limits.CPUs), float64(runtime.NumCPU())), Memory: limits.Memory}
	if _, err := os.Stat(l.dirs.limited(id)); err == nil {
		has.Disk = l.cfg.Disk.Of(cmp.Or(size, string(SizeSmall))).Bytes
	}
	return has, nil
}

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

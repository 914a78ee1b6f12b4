// Package process manages the commands of boxes, which become children of this process when the OCI runtime exits: it
// copies their streams, waits for them and kills them.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"boxgate/launcher/oci"
	"boxgate/policy"
)

// Process is a child that the runtime has left to this process. Its ID cannot be reused before we have waited for it.
type Process struct {
	pid    int
	tree   Tree
	handle *os.File // a pidfd, readable once the process has ended

	mu       sync.Mutex
	ended    bool        // guarded by mu; from then on the kernel may reuse pid
	killedBy unix.Signal // guarded by mu
}

// Tree is a process with all its descendants.
type Tree interface {
	Signal(sig unix.Signal) error
	Kill() error
}

// Adopt wraps a process that the runtime started. Without a tree, its process group replaces it.
func Adopt(pid int, tree Tree) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot watch process %d: %w", pid, err)
	}
	return &Process{pid: pid, tree: tree, handle: os.NewFile(uintptr(fd), "pidfd")}, nil
}

// wait blocks until the process has ended and returns its exit status, or 128 plus the signal that killed it. The goroutine
// sleeps in Go's poller, so a waiting command costs no thread.
func (o *Process) wait() (int, error) {
	defer o.handle.Close()
	raw, err := o.handle.SyscallConn()
	if err != nil {
		return 0, err
	}
	var status unix.WaitStatus
	var werr error
	err = raw.Read(func(uintptr) (done bool) {
		done, werr = o.poll(&status)
		return done
	})
	if err = errors.Join(err, werr); err != nil {
		return 0, fmt.Errorf("cannot wait for process %d: %w", o.pid, err)
	}
	if status.Signaled() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.killedBy = status.Signal()
		return 128 + int(o.killedBy), nil
	}
	return status.ExitStatus(), nil
}

// KilledBy returns the signal that killed the process, once [Process.Await] has returned; 0: none. A program may also exit by itself with
// the status that Await returns for a signal.
func (o *Process) KilledBy() unix.Signal {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.killedBy
}

// poll checks whether the process has ended, and reaps it.
func (o *Process) poll(status *unix.WaitStatus) (done bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		got, err := unix.Wait4(o.pid, status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		o.ended = err != nil || got == o.pid
		return o.ended, err
	}
}

// Kill kills the process and all its descendants, unless the process has ended.
func (o *Process) Kill() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	if o.tree != nil {
		_ = o.tree.Kill()
	} else {
		o.signalGroup(unix.SIGKILL)
	}
	_ = unix.Kill(o.pid, unix.SIGKILL)
}

// Signal sends a signal to the process and all its descendants, unless the process has ended.
func (o *Process) Signal(sig unix.Signal) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.ended:
	case o.tree != nil:
		_ = o.tree.Signal(sig)
	default:
		o.signalGroup(sig)
	}
}

// signalGroup sends a signal to the process group of the process, which the runtime may have created before the process, as
// crun does. The group ID cannot be reused before we have waited for the process. The caller holds mu.
func (o *Process) signalGroup(sig unix.Signal) {
	group, err := unix.Getpgid(o.pid)
	if err != nil || group <= 1 || group == unix.Getpgrp() { // it shares our group
		_ = unix.Kill(o.pid, sig)
		return
	}
	_ = unix.Kill(-group, sig)
}

// NamespacePID returns the ID of the process in its own PID namespace. It is available until [Process.Await] has returned.
func (o *Process) NamespacePID() (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", o.pid))
	if err != nil {
		return 0, err
	}
	if ids := innerIDs(string(status)); len(ids) > 0 {
		return strconv.Atoi(ids[len(ids)-1])
	}
	return 0, fmt.Errorf("process %d has no ID in its namespace", o.pid)
}

// innerIDs returns the IDs of a process in our PID namespace and in each nested one, from its status (proc_pid_status(5)).
func innerIDs(status string) []string {
	for line := range strings.Lines(status) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			return strings.Fields(ids)
		}
	}
	return nil
}

// ReapLater reaps a process whose exit status is not needed, so that it does not stay a zombie.
func ReapLater(pid int) error {
	o, err := Adopt(pid, nil)
	if err != nil {
		return err
	}
	go func() { _, _ = o.wait() }()
	return nil
}

// Await waits for a process, and kills it when ctx ends. If a killed process does not end, because its box is paused, Await
// returns and it is reaped in the background.
func (o *Process) Await(ctx context.Context) (int, error) {
	type result struct {
		status int
		err    error
	}
	ended := make(chan result, 1)
	go func() {
		status, err := o.wait()
		ended <- result{status, err}
	}()
	select {
	case r := <-ended:
		return r.status, r.err
	case <-ctx.Done():
	}
	o.Kill()
	select {
	case r := <-ended:
		return r.status, context.Cause(ctx)
	case <-time.After(5 * time.Second):
		return 137, context.Cause(ctx)
	}
}

// maxStreams bounds the abandoned streams of one box that are read and discarded.
const maxStreams = 64

// Background reads and discards the output that ended commands have left open to other processes of the box, because a
// write to a closed pipe would kill those. Each stream costs a descriptor and a goroutine, and one process of a box can
// hold open as many as there were commands, so the oldest are closed when there are too many.
//
// Reading costs the gateway CPU time, so the rate of a box is limited: after a burst its processes block on their output.
type Background struct {
	mu       sync.Mutex
	open     map[policy.BoxID][]*os.File    // guarded by mu; oldest first
	limiters map[policy.BoxID]*rate.Limiter // guarded by mu; of boxes with discarded output
}

// Limits of the discarded output of all commands of a box.
const (
	discardRate  = 4 << 20  // bytes per second
	discardBurst = 64 << 20 // bytes before the rate limit applies
)

// WaitDiscard blocks until n more bytes of a box may be discarded.
func (b *Background) WaitDiscard(id policy.BoxID, n int) {
	b.mu.Lock()
	if b.limiters == nil {
		b.limiters = map[policy.BoxID]*rate.Limiter{}
	}
	l := b.limiters[id]
	if l == nil {
		maps.DeleteFunc(b.limiters, func(_ policy.BoxID, l *rate.Limiter) bool { return l.Tokens() >= discardBurst }) // equivalent to a new one
		l = rate.NewLimiter(discardRate, discardBurst)
		b.limiters[id] = l
	}
	b.mu.Unlock()
	_ = l.WaitN(context.Background(), min(n, discardBurst))
}

// discardWriter is a writer that discards at the rate of its box.
type discardWriter struct {
	b  *Background
	id policy.BoxID
}

func (w discardWriter) Write(p []byte) (int, error) {
	w.b.WaitDiscard(w.id, len(p))
	return len(p), nil
}

// Discard takes over a stream and reads it to its end.
func (b *Background) Discard(id policy.BoxID, r *os.File) {
	_ = r.SetReadDeadline(time.Time{})
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		b.open = map[policy.BoxID][]*os.File{}
	}
	list := append(b.open[id], r)
	if len(list) > maxStreams {
		list[0].Close()
		list = slices.Delete(list, 0, 1)
	}
	b.open[id] = list
	go func() {
		_, _ = io.Copy(discardWriter{b, id}, onlyReader{r}) // until its writers are gone, or it is closed by Discard or CloseAll
		r.Close()
		b.forget(id, r)
	}()
}

func (b *Background) forget(id policy.BoxID, r *os.File) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.open[id]
	if i := slices.Index(list, r); i >= 0 {
		list = slices.Delete(list, i, i+1)
		b.open[id] = list
	}
	if len(list) == 0 {
		delete(b.open, id)
	}
}

// CloseAll closes the remaining streams of a box.
func (b *Background) CloseAll(id policy.BoxID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.open[id] {
		r.Close()
	}
	delete(b.open, id)
	delete(b.limiters, id)
}

// ReapOrphans reaps the processes that a runtime which has failed, or was killed, has left to this process as their reaper;
// their IDs are unknown. The first process of a box does not end before its PID namespace is reaped completely, so the box
// would neither run nor end. ReapOrphans selects children that are half started, or that belongs returns true for.
//
// Processes that are still dying are waited for in the background, and so are children that they leave in turn.
func ReapOrphans(belongs func(pid int) bool) {
	if found := orphans(belongs); len(found) > 0 {
		go func() {
			for len(found) > 0 && reapAll(found) {
				found = orphans(belongs)
			}
		}()
	}
}

// reapAll waits until all of them have ended, and reports whether it could.
func reapAll(found []orphan) bool {
	var all sync.WaitGroup
	defer all.Wait()
	for _, each := range found {
		o, err := Adopt(each.pid, nil)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return false
		}
		all.Go(func() {
			if o.waitUnreaped() == nil && (each.certain || halfStarted(read(each.pid))) {
				_, _ = o.wait()
			}
			o.handle.Close()
		})
	}
	return true
}

// waitUnreaped blocks until the process has ended, without reaping it.
func (o *Process) waitUnreaped() error {
	raw, err := o.handle.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) (done bool) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

// orphan is a child of this process that may have to be reaped.
type orphan struct {
	pid     int
	certain bool // false: it may still become a command of a box, which another goroutine waits for
}

// orphans returns the children of this process that may have to be reaped.
func orphans(belongs func(pid int) bool) []orphan {
	var found []orphan
	stats, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range stats {
		id, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if pid, comm, ok := read(id); ok {
			if certain := belongs(pid); certain || halfStarted(pid, comm, ok) {
				found = append(found, orphan{pid, certain})
			}
		}
	}
	return found
}

// read returns the name of a child of this process. ok is false for other processes.
func read(id int) (pid int, comm string, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id))
	if err != nil {
		return 0, "", false
	}
	return child(string(stat), os.Getpid())
}

// halfStarted reports whether a process has the name of a process that a runtime has not turned into the command of a box
// yet. A command that takes such a name only loses its own exit status.
func halfStarted(pid int, comm string, ok bool) bool {
	return ok && oci.HalfStarted(comm, func() bool { return inBox(pid) })
}

// inBox reports whether a process, which may have ended, is in a PID namespace below ours.
func inBox(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	return len(innerIDs(string(status))) > 1
}

// child parses a process's stat (proc_pid_stat(5)), and reports whether it is a child of parent.
func child(stat string, parent int) (pid int, comm string, ok bool) {
	id, rest, _ := strings.Cut(stat, " (")
	end := strings.LastIndex(rest, ") ")
	if end < 0 {
		return 0, "", false
	}
	fields := strings.Fields(rest[end+1:])
	if len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
		return 0, "", false
	}
	pid, err := strconv.Atoi(id)
	return pid, rest[:end], err == nil
}

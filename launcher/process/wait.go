package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a child that the runtime has left to this process. Its ID cannot be reused before we have waited for it.
type Process struct {
	pid    int
	tree   Tree
	handle *os.File // a pidfd, readable once the process has ended

	mu    sync.Mutex
	ended bool // guarded by mu; from then on the kernel may reuse pid
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
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
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

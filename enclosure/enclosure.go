// Package enclosure runs one command of the host in namespaces of its own (network, processes, mounts, System V IPC), with the
// files of the host and as the user who asked for it, but without any privilege over the host. The network namespace has
// nothing but a loopback interface: whoever starts the command puts an interface there, or the command has no network.
//
// Nothing is kept anywhere but in the kernel's own count of who uses what: when this process ends, in whatever way, the command
// and everything that it started are killed, and namespaces and mounts are gone.
package enclosure

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/enclosure/inside"
)

// Process is a command in its namespaces: first on its way, then running. Its methods are for one goroutine, other than Signal.
type Process struct {
	// Refused, unless nil, is called by Wait with the path of a Unix socket of the host that the command tried to connect to, once for each.
	Refused func(path string)

	cmd     *exec.Cmd
	orders  *os.File
	reports *os.File
	tty     *os.File // the terminal that the command gets; nil: none

	patience time.Duration
	closed   sync.Once
	closeErr error
}

// Start makes the namespaces, with a process in them that waits for [Process.Run]. Its standard input is the given file, or none
// (/dev/null) if that is nil; output and errors are those of this process. The calling goroutine must stay on the thread for as long as the process is to live: the kernel kills it when the
// thread ends.
func Start(stdin *os.File) (*Process, error) {
	runtime.LockOSThread()
	ordersIn, orders, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ordersIn.Close()
	reports, reportsOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, orders.Close())
	}
	defer reportsOut.Close()
	cmd := exec.Command("/proc/self/exe", inside.Command)
	cmd.Env = []string{}
	if stdin != nil { // a nil *os.File is not a nil Reader
		cmd.Stdin = stdin
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{ordersIn, reportsOut}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("making namespaces: %w", err), orders.Close(), reports.Close())
	}
	return &Process{cmd: cmd, orders: orders, reports: reports, tty: foregroundTerminal(), patience: endPatience}, nil
}

// PID is a process in the namespaces.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Run starts the command, and returns once it runs or cannot be started. An error that is an *[ExitError] has the status that
// shells use for that.
func (p *Process) Run(s inside.Spec) error {
	s.Foreground = p.tty != nil
	if err := inside.Send(p.orders, s); err != nil {
		return fmt.Errorf("the process that was to start the command has ended: %w", err)
	}
	rep, err := inside.ReadReport(p.reports)
	switch {
	case err != nil:
		return fmt.Errorf("the process that was to start the command has ended: %w", err)
	case rep.Kind == inside.Failed:
		return &ExitError{Status: int(rep.Value), Why: rep.Text}
	}
	return nil
}

// ExitError says that the command could not be started.
type ExitError struct {
	Status int
	Why    string
}

// Error implements error.
func (e *ExitError) Error() string { return e.Why }

// Signal sends the command a signal. It may have ended.
func (p *Process) Signal(sig syscall.Signal) { _, _ = p.orders.Write([]byte{byte(sig)}) }

// Wait returns the exit status of the command, 128+n if signal n killed it. It stops this process while the command is
// stopped, so that the shell that started it can go on.
func (p *Process) Wait() (int, error) {
	for {
		rep, err := inside.ReadReport(p.reports)
		if err != nil {
			return 0, errors.New("the first process of the command was killed, and everything with it")
		}
		switch rep.Kind {
		case inside.Exited:
			return int(rep.Value), nil
		case inside.Killed:
			return 128 + int(rep.Value), nil
		case inside.Stopped:
			p.pause()
		case inside.Refused:
			if p.Refused != nil {
				p.Refused(rep.Text)
			}
		}
	}
}

// pause stops this process until it is continued, with the terminal back in the hands of its own process group meanwhile.
func (p *Process) pause() {
	if p.tty == nil {
		return // who has stopped the command continues it
	}
	p.takeBack()
	stopHere()
	if isForeground(p.tty) {
		_, _ = p.orders.Write([]byte{inside.Resume})
		return
	}
	p.Signal(syscall.SIGCONT) // in the background: it is stopped again if it reads
}

// stopHere stops this process, and does not return before it is continued. A signal for the process could be taken by another
// thread, and this one would run on for a moment.
func stopHere() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
}

// endPatience is how long the end of processes that were killed is waited for.
const endPatience = 10 * time.Second

// ErrNotEnded says that processes were killed and have not ended.
var ErrNotEnded = errors.New("what the command has left was killed, but does not end: it waits for a file system that does not answer, and ends when that does or is unmounted (umount -f)")

// Close kills what is left, waits for it, and takes the terminal back. If it is [ErrNotEnded], the command does nothing any more.
func (p *Process) Close() error {
	p.closed.Do(func() { p.closeErr = p.close() })
	return p.closeErr
}

func (p *Process) close() error {
	_ = p.cmd.Process.Kill()
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	var err error
	select {
	case err = <-ended:
	case <-time.After(p.patience):
		err = ErrNotEnded
	}
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		err = nil
	}
	if p.tty != nil {
		p.takeBack()
		err = errors.Join(err, p.tty.Close())
	}
	return errors.Join(err, p.orders.Close(), p.reports.Close())
}

// OwnsTerminal reports whether the command is in the foreground of a terminal: keys become signals for it, not for this
// process.
func (p *Process) OwnsTerminal() bool { return p.tty != nil }

var _ io.Closer = (*Process)(nil)

// Package enclosure runs one command of the host in its own namespaces (network, processes, mounts, System V IPC), with the
// host's files and as the user who requested it, but without any privilege over the host. The network namespace has only a
// loopback interface: without an interface from the caller, the command has no network.
//
// The kernel alone tracks all state: when this process ends, in whatever way, it kills the command and all its descendants,
// and removes namespaces and mounts.
package enclosure

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"boxgate/enclosure/inside"
)

// Process is a command in its namespaces, from before its start to its end. Its methods are not safe for concurrent use,
// except Signal.
type Process struct {
	// OnRefused, if not nil, is called by Wait with the path of each Unix socket of the host that the command was refused a
	// connection to, once per path.
	OnRefused func(path string)

	cmd     *exec.Cmd
	orders  *os.File
	reports *os.File
	tty     *os.File // the command's terminal, or nil

	closeTimeout time.Duration
	closed       sync.Once
	closeErr     error
}

// Start makes the namespaces, with a process in them that waits for [Process.Run]. Its standard input is stdin, or
// /dev/null if that is nil; output and errors are those of this process. The calling goroutine must stay on its thread
// until the process ends: the kernel kills the process when the thread ends.
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
	return &Process{cmd: cmd, orders: orders, reports: reports, tty: foregroundTerminal(), closeTimeout: closeTimeout}, nil
}

// PID returns the ID of a process in the namespaces.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Run starts the command, and returns when it runs or has failed to start. An *[ExitError] has the exit status that shells
// use for the failure.
func (p *Process) Run(s inside.Spec) error {
	s.Foreground = p.tty != nil
	if err := inside.Send(p.orders, s); err != nil {
		return fmt.Errorf("the process that should start the command has ended: %w", err)
	}
	rep, err := inside.ReadReport(p.reports)
	switch {
	case err != nil:
		return fmt.Errorf("the process that should start the command has ended: %w", err)
	case rep.Kind == inside.Failed:
		return &ExitError{Status: int(rep.Value), Why: rep.Text}
	}
	return nil
}

// ExitError reports that the command could not be started.
type ExitError struct {
	Status int
	Why    string
}

// Error implements error.
func (e *ExitError) Error() string { return e.Why }

// Signal sends the command a signal. A command that has ended is not an error.
func (p *Process) Signal(sig syscall.Signal) { _, _ = p.orders.Write([]byte{byte(sig)}) }

// Wait returns the exit status of the command, 128+n if signal n killed it. While the command is stopped, Wait stops this
// process, so that the shell regains control.
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
			if p.OnRefused != nil {
				p.OnRefused(rep.Text)
			}
		}
	}
}

// pause stops this process until it is continued. Until then its own process group has the terminal.
func (p *Process) pause() {
	if p.tty == nil {
		return // the process that stopped the command continues it
	}
	p.reclaimTerminal()
	stopSelf()
	if isForeground(p.tty) {
		_, _ = p.orders.Write([]byte{inside.Resume})
		return
	}
	p.Signal(syscall.SIGCONT) // in the background: it is stopped again if it reads
}

// stopSelf stops this process, and returns when it is continued. It signals its own thread, because another thread could
// take a signal to the process, and this one would run on for a moment.
func stopSelf() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
}

// closeTimeout is how long Close waits for killed processes to end.
const closeTimeout = 10 * time.Second

// ErrNotEnded means that processes were killed but have not ended.
var ErrNotEnded = errors.New("processes of the command were killed but have not ended: they wait for a file system that does not answer, and end when it answers or is unmounted (umount -f)")

// Close kills the remaining processes, waits for their end, and takes the terminal back. After [ErrNotEnded] the command
// is inactive.
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
	case <-time.After(p.closeTimeout):
		err = ErrNotEnded
	}
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		err = nil
	}
	if p.tty != nil {
		p.reclaimTerminal()
		err = errors.Join(err, p.tty.Close())
	}
	return errors.Join(err, p.orders.Close(), p.reports.Close())
}

// OwnsTerminal reports whether the command is in the foreground of a terminal, so that keys signal the command and not this
// process.
func (p *Process) OwnsTerminal() bool { return p.tty != nil }

var _ io.Closer = (*Process)(nil)

// foregroundTerminal opens the terminal of this process if the process is in the foreground and not part of a pipeline, in
// which another program may need the terminal as well.
func foregroundTerminal() *os.File {
	if !term.IsTerminal(0) || !term.IsTerminal(1) {
		return nil
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	if !isForeground(tty) {
		tty.Close()
		return nil
	}
	return tty
}

func isForeground(tty *os.File) bool {
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// SharesTerminal reports whether keys that send signals affect both this process and the command, as in a pipeline on a
// terminal.
func (p *Process) SharesTerminal() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	return p.tty == nil && isForeground(tty)
}

// reclaimTerminal makes this process the foreground of its terminal again.
func (p *Process) reclaimTerminal() { _ = inside.SetForeground(p.tty, unix.Getpgrp()) }

// HostSockets returns the paths of the Unix sockets bound in this process's network namespace, through which a command
// could make processes of the host act for it. Sockets with relative paths, and sockets of other network namespaces, cannot
// be found in this way.
func HostSockets() ([]string, error) {
	data, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, fmt.Errorf("finding the host's sockets: %w", err)
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		// Num: RefCount Protocol Flags Type St Inode Path; the path may contain spaces
		_, path, ok := strings.Cut(line, " /")
		if !ok {
			continue
		}
		path = "/" + strings.TrimSuffix(path, "\n")
		if !slices.Contains(out, path) {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out, nil
}

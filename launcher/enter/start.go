package enter

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/launcher/process"
)

// Started is a command that has been started. It is a child of this process, which must wait for it.
type Started struct {
	PID int
	// Terminal is the file that the box has opened as its terminal, or nil. The caller must check that it is one.
	Terminal *os.File
}

// ErrNotEntered is returned, wrapped, if no process was started in the box, for a reason outside the box's files. The caller
// may start the command otherwise.
var ErrNotEntered = errors.New("the box cannot be entered")

// errKilled is returned if the entering process was killed, as by the end of the box. It may have started a process in the box.
var errKilled = errors.New("the entering process was killed")

// StepError reports the step that failed in the box.
type StepError struct {
	Step  string
	Errno unix.Errno
	// Program is set if the program could not be executed.
	Program string
}

// Error describes the failure as the runtimes do.
func (e *StepError) Error() string {
	switch {
	case e.Step == lookupStep:
		return fmt.Sprintf("exec: %q: executable file not found in $PATH", e.Program)
	case e.Step == execStep:
		return fmt.Sprintf("exec: %q: %v", e.Program, e.Errno)
	}
	return fmt.Sprintf("%s: %v", e.Step, e.Errno)
}

// Start starts a command in the box of a first process, given by its pidfd. It returns when the command's program has been
// executed, or with a *StepError. When ctx ends first, the process is killed as soon as it is known, and Start returns ctx's
// cause. streams are the command's standard input, output and error; for a command with a terminal they are only used until
// it is opened.
func (p *Program) Start(ctx context.Context, box *os.File, c Command, streams [3]*os.File) (Started, error) {
	list, err := c.steps()
	if err != nil {
		return Started{}, errors.Join(ErrNotEntered, err)
	}
	file, err := list.file()
	if err != nil {
		return Started{}, errors.Join(ErrNotEntered, err)
	}
	defer file.Close()
	run, err := p.launch(file, box, c.Executable, c.Unified, streams)
	if err != nil {
		return Started{}, errors.Join(ErrNotEntered, err)
	}
	run.plan, run.program, run.lose = list, c.Process.Args[0], c.Lost
	return run.await(ctx)
}

// try runs a list that enters no box, to see whether this process may start the program.
func (p *Program) try() error {
	list := &plan{}
	list.call("closing descriptors", unix.SYS_CLOSE_RANGE, freeFD, uintptr(^uint32(0)), 0)
	list.call("the report", unix.SYS_WRITE, reportFD, list.words(startedMark), 8)
	list.call("the end", unix.SYS_EXIT_GROUP, 0)
	file, err := list.file()
	if err != nil {
		return err
	}
	defer file.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	run, err := p.launch(file, null, nil, "", [3]*os.File{null, null, null})
	if err != nil {
		return fmt.Errorf("a program in memory: %w", err)
	}
	defer run.reports.Close()
	_ = run.reports.SetDeadline(time.Now().Add(tryTimeout))
	report, _, err := run.receive()
	if _, werr := run.outer.Wait(); err == nil {
		err = werr
	}
	if err != nil || report.mark != startedMark {
		return fmt.Errorf("a program in memory does not run: %#x, %w", report.mark, err)
	}
	return nil
}

const tryTimeout = 10 * time.Second

// file returns the plan as a file in memory.
func (p *plan) file() (_ *os.File, err error) {
	calls, err := p.encode()
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("boxgate-command", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "boxgate-command")
	if _, err = f.WriteAt(calls, 0); err == nil {
		_, err = f.WriteAt(append(p.data, 0), dataAt-planAt)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// running is an entering process.
type running struct {
	outer   *os.Process
	reports *net.UnixConn
	plan    *plan
	program string
	lose    func() // see [Command.Lost]

	mu       sync.Mutex
	pid      int  // guarded by mu; of the child, once it has been reported
	unwanted bool // guarded by mu; the child is to be killed
	lost     bool // guarded by mu; the outer process was killed before the child was reported
}

// kill kills the child now, or as soon as it is reported. Its ID is not reused before it has been waited for.
func (r *running) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unwanted = true
	if r.pid > 1 {
		_ = unix.Kill(r.pid, unix.SIGKILL)
	}
}

// started records the child's ID. It returns false if the child is already given up.
func (r *running) started(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost {
		return false
	}
	if r.pid = pid; r.unwanted && pid > 1 {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return true
}

// waitOuter waits for the outer process. If it was killed before it reported its child, the caller of [Program.Start] must find
// the child: it would keep the reports open, as long as the box stops it, and stay a zombie.
func (r *running) waitOuter() {
	state, err := r.outer.Wait()
	if err == nil && state.Exited() {
		return
	}
	r.mu.Lock()
	r.lost = r.pid <= 1
	lost := r.lost
	r.mu.Unlock()
	if lost && r.lose != nil {
		r.lose()
	}
}

// OpenSelf opens the program of this process for [Command.Executable]. It fails if the program is not static.
func OpenSelf() (*os.File, error) {
	const self = "/proc/self/exe"
	if err := checkStatic(self); err != nil {
		return nil, err
	}
	fd, err := unix.Open(self, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), self), nil
}

// checkStatic returns an error if an executable asks for a loader, which the kernel would look for in the box.
func checkStatic(file string) error {
	program, err := elf.Open(file)
	if err != nil {
		return err
	}
	defer program.Close()
	for _, segment := range program.Progs {
		if segment.Type == elf.PT_INTERP {
			return errors.New("a dynamic program is not executed in boxes; build it with CGO_ENABLED=0")
		}
	}
	return nil
}

// launch starts the outer process, in a control group of version 2 if unified is its directory. executable may be nil.
func (p *Program) launch(list, box, executable *os.File, unified string, streams [3]*os.File) (*running, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, its := os.NewFile(uintptr(pair[0]), "reports"), os.NewFile(uintptr(pair[1]), "reports")
	defer ours.Close()
	defer its.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	sys := &syscall.SysProcAttr{}
	if unified != "" {
		group, err := os.Open(unified)
		if err != nil {
			conn.Close()
			return nil, err
		}
		defer group.Close()
		sys.UseCgroupFD, sys.CgroupFD = true, int(group.Fd())
	}
	files := []*os.File{streams[0], streams[1], streams[2], list, its, box}
	if executable != nil {
		files = append(files, executable)
	}
	outer, err := os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", p.file.Fd()), []string{"boxgate-enter"}, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: files, Sys: sys,
	})
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &running{outer: outer, reports: conn.(*net.UnixConn)}, nil
}

// report is one message of an entering process.
type report struct{ mark, value uint32 }

// receive returns the next message, with a descriptor if one is attached. After the last one it returns io.EOF.
func (r *running) receive() (report, *os.File, error) {
	b, control := make([]byte, 16), make([]byte, unix.CmsgSpace(4))
	n, cn, _, _, err := r.reports.ReadMsgUnix(b, control)
	if err != nil {
		return report{}, nil, err
	}
	if n != 8 {
		return report{}, nil, io.EOF
	}
	m := report{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])}
	file, err := attached(control[:cn])
	return m, file, err
}

// attached returns the descriptor of a control message, if there is one.
func attached(control []byte) (*os.File, error) {
	if len(control) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "terminal"), nil
}

// outcome is the sum of all reports.
type outcome struct {
	Started
	err error
}

// await waits until the command's program has been executed. An end of ctx makes it return early; the reports are then read
// in the background, to kill and reap the process.
func (r *running) await(ctx context.Context) (Started, error) {
	done := make(chan outcome, 1)
	go func() {
		defer r.reports.Close()
		done <- r.collect()
	}()
	select {
	case o := <-done:
		if o.err != nil {
			o.discard()
			return Started{}, o.err
		}
		return o.Started, nil
	case <-ctx.Done():
	}
	r.kill()
	go func() {
		o := <-done
		o.discard()
	}()
	return Started{}, context.Cause(ctx)
}

// collect reads all reports. They end when the outer process has exited and the program has been executed, or the process
// in the box has exited.
func (r *running) collect() outcome {
	var o outcome
	var failed error
	outerEnded := make(chan struct{})
	go func() {
		defer close(outerEnded)
		r.waitOuter()
	}()
	for {
		m, file, err := r.receive()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				failed = errors.Join(failed, err)
			}
			break
		}
		switch m.mark {
		case startedMark:
			if r.started(int(m.value)) {
				o.PID = int(m.value)
			}
		case terminalMark:
			if o.Terminal != nil {
				o.Terminal.Close()
			}
			o.Terminal = file
		default:
			failed = r.stepError(m)
		}
	}
	<-outerEnded
	switch {
	case o.PID <= 1 && (r.lost || failed == nil):
		failed = errors.Join(errKilled, failed)
	case o.PID <= 1:
		failed = fmt.Errorf("%w: %w", ErrNotEntered, failed)
	}
	o.err = failed
	return o
}

func (r *running) stepError(m report) error {
	e := &StepError{Step: r.plan.nameAt(m.mark), Errno: unix.Errno(m.value)}
	if e.Step == execStep || e.Step == lookupStep {
		e.Program = r.program
	}
	return e
}

// discard kills and reaps a process that is not wanted.
func (o outcome) discard() {
	if o.Terminal != nil {
		o.Terminal.Close()
	}
	if o.PID <= 1 {
		return
	}
	_ = unix.Kill(o.PID, unix.SIGKILL)
	_ = process.ReapLater(o.PID)
}

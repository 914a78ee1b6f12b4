// Package inside is the first process in the namespaces of a command that `gateway run` runs. It waits for the network,
// sets up the command's view of the file system, starts the command without any privilege over the host, reaps orphans, and
// forwards signals. When it ends, in whatever way, the kernel kills everything in its PID namespace. A second process, the
// supervisor, makes the connections of the command (package connect).
package inside

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"boxgate/enclosure/inside/connect"
)

// Descriptors from the process outside.
const (
	orders  = 3 // a Spec, then orders; EOF when the process outside ends
	reports = 4
)

// Main reads a Spec, runs the command, and returns the exit status of this process.
func Main() int {
	if isSupervisor() {
		return supervise()
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "gateway: this is started by `gateway run`")
		return 2
	}
	unix.CloseOnExec(orders)
	unix.CloseOnExec(reports)
	in, out := bufio.NewReader(os.NewFile(orders, "orders")), os.NewFile(reports, "reports")
	spec, err := readSpec(in)
	if err != nil {
		return 1 // the process outside is gone
	}
	r := &reporter{out: out, started: make(chan struct{})}
	c, err := start(spec, r.reportRefused)
	if err != nil {
		rep := Report{Kind: Failed, Value: 1, Text: err.Error()}
		if failed := (*startError)(nil); errors.As(err, &failed) {
			rep.Value = failed.status
		}
		rep.send(out)
		return 1
	}
	Report{Kind: Started}.send(out)
	close(r.started)
	go func() {
		c.runOrders(in)
		killAll()
		os.Exit(1) // the process outside is gone, and the end of this one ends the command
	}()
	c.reapUntilExit(out)
	killAll()
	return 0
}

// killAll kills every other process in the PID namespace, as the kernel does when this process ends.
func killAll() {
	if os.Getpid() == 1 { // otherwise it would kill processes of the host
		_ = unix.Kill(-1, unix.SIGKILL)
	}
}

// reporter reports refused connections of the command, after the report that it has started.
type reporter struct {
	out     io.Writer // a pipe; writes of short messages are atomic
	started chan struct{}
}

func (r *reporter) reportRefused(path string) {
	<-r.started
	Report{Kind: Refused, Text: path}.send(r.out)
}

// start sets everything up and starts the command. On failure the command has not run. refused is called with the path of
// each socket that the command was refused.
func start(s Spec, refused func(path string)) (*command, error) {
	if err := checkStandardFiles(); err != nil {
		return nil, err
	}
	reach, err := connect.Open(s.AllowedSockets)
	if err != nil {
		return nil, err
	}
	if err := setUpFiles(s); err != nil {
		return nil, err
	}
	return launch(s, func(listener int) (*supervisor, error) { return startSupervisor(listener, reach, refused) })
}

// checkStandardFiles refuses sockets as standard input, output or error, because the command would inherit them: it could
// connect past its network namespace, or name a destination. A connected Unix stream socket is allowed, since it leads only
// to its peer.
func checkStandardFiles() error {
	for fd, name := range []string{"standard input", "standard output", "standard error"} {
		family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if errors.Is(err, unix.ENOTSOCK) || errors.Is(err, unix.EBADF) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		_, unconnected := unix.Getpeername(fd)
		if family != unix.AF_UNIX || kind != unix.SOCK_STREAM && kind != unix.SOCK_SEQPACKET || unconnected != nil {
			return fmt.Errorf("%s is a socket of the host, through which the command could bypass the gateway: put a pipe in between, as in `cat | gateway run … | cat`", name)
		}
	}
	return nil
}

// runOrders executes orders until the process outside ends.
func (c *command) runOrders(in io.ByteReader) {
	for {
		order, err := in.ReadByte()
		switch {
		case err != nil:
			return
		case order == Resume:
			c.resume()
		default:
			_ = unix.Kill(c.pid, unix.Signal(order)) // it may have ended
		}
	}
}

// reapUntilExit reaps processes until the command ends, and reports its state changes.
func (c *command) reapUntilExit(out io.Writer) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WUNTRACED, nil)
		switch {
		case pid == c.supervisor.pid && !status.Stopped():
			return // without it the command has no connections
		case err != nil || pid != c.pid:
			if errors.Is(err, unix.ECHILD) {
				return
			}
		case status.Stopped():
			Report{Kind: Stopped, Value: byte(status.StopSignal())}.send(out)
		case status.Signaled():
			c.supervisor.flush()
			Report{Kind: Killed, Value: byte(status.Signal())}.send(out)
			return
		case status.Exited():
			c.supervisor.flush()
			Report{Kind: Exited, Value: byte(status.ExitStatus())}.send(out)
			return
		}
	}
}

// command is a running command.
type command struct {
	pid        int
	supervisor *supervisor
	terminal   *os.File // nil unless the command has the terminal
}

// launch starts the command as its user, without a way to gain privileges. The supervisor answers its calls of connect(2).
func launch(s Spec, supervise func(listener int) (*supervisor, error)) (*command, error) {
	c := &command{}
	attr := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(s.UID), Gid: uint32(s.GID), Groups: groups(s.Groups)}}
	if s.Foreground {
		var err error
		if c.terminal, err = os.OpenFile("/dev/tty", os.O_RDWR, 0); err != nil {
			return nil, err
		}
		attr.Setpgid, attr.Foreground, attr.Ctty = true, true, int(c.terminal.Fd())
	}
	program, err := findProgram(s)
	if err != nil {
		return nil, err
	}
	// Privileges are dropped for the thread only, and the command is forked from it.
	runtime.LockOSThread()
	listener, err := confine(s.UID)
	if err != nil {
		return nil, err
	}
	if c.supervisor, err = supervise(listener); err != nil {
		return nil, err
	}
	c.pid, err = syscall.ForkExec(program, s.Args, &syscall.ProcAttr{Dir: s.Dir, Env: s.Env, Files: []uintptr{0, 1, 2}, Sys: attr})
	if err != nil {
		return nil, notStarted(126, "%s cannot be started: %w", s.Args[0], err)
	}
	return c, nil
}

func groups(ids []int) []uint32 {
	out := make([]uint32, len(ids))
	for i, id := range ids {
		out[i] = uint32(id)
	}
	return out
}

// findProgram looks the program up as execvp(3) does. A relative path is relative to the directory of the command.
func findProgram(s Spec) (string, error) {
	if info, err := os.Stat(s.Dir); err != nil || !info.IsDir() {
		return "", notStarted(126, "the directory %s is not there for the command: start it in another", s.Dir)
	}
	name := s.Args[0]
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := "/usr/local/bin:/usr/bin:/bin"
	for _, kv := range s.Env {
		if value, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = value
		}
	}
	for _, dir := range filepath.SplitList(path) {
		at := filepath.Join(dir, name)
		if !filepath.IsAbs(at) {
			at = filepath.Join(s.Dir, at)
		}
		if info, err := os.Stat(at); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return at, nil
		}
	}
	return "", notStarted(127, "there is no program %q in PATH", name)
}

// resume continues a stopped command, in the foreground if it had the terminal.
func (c *command) resume() {
	if c.terminal == nil {
		_ = unix.Kill(c.pid, unix.SIGCONT)
		return
	}
	_ = SetForeground(c.terminal, c.pid)
	_ = unix.Kill(-c.pid, unix.SIGCONT)
}

// SetForeground makes a process group the foreground of a terminal. The caller may be in the background, where the kernel
// would otherwise stop it for that.
func SetForeground(terminal *os.File, group int) error {
	return BlockTTOU(func() error {
		return unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPGRP, group)
	})
}

// BlockTTOU runs f on a thread that the terminal cannot stop, whatever its settings.
func BlockTTOU(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var blocked, before unix.Sigset_t
	blocked.Val[0] = 1 << (unix.SIGTTOU - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, &before); err != nil {
		return err
	}
	err := f()
	return errors.Join(err, unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil))
}

// The supervisor of a command's connections is a separate process. A file system in user space that never answers can keep
// it from ending, even when it is killed. The first process can always end, and that kills the command.

// Descriptors of the supervisor, after standard input, output and error, which are /dev/null.
const (
	listenerOfCalls = 3
	toFirst         = 4 // reports: Started or Failed, then Refused
	reachable       = 5 // []connect.Object as JSON, until EOF
)

// supervisor is the first process's handle of the supervisor.
type supervisor struct {
	pid     int
	reports *os.File      // the write end of its reports, to append a message
	flushed chan struct{} // closed when all earlier reports were passed on
}

// startSupervisor starts the supervisor for the calls that the listener reports, and returns when it answers them. refused
// is called with the path of each socket that the command is refused. The supervisor has the rights of this process, not
// of the calling thread, which is confined. When it ends, so does the first process.
func startSupervisor(listener int, reach []connect.Object, refused func(path string)) (*supervisor, error) {
	defer unix.Close(listener)
	data, err := json.Marshal(reach)
	if err != nil {
		return nil, err
	}
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	from, to, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	s := &supervisor{flushed: make(chan struct{})}
	s.pid, err = forkUnconfined(listener, int(to.Fd()), int(in.Fd()))
	_, _ = to.Close(), in.Close()
	if err == nil {
		_, err = out.Write(data)
	}
	_ = out.Close()
	rep, failed := ReadReport(from)
	switch {
	case err != nil:
		return nil, errors.Join(fmt.Errorf("starting the supervisor of connections: %w", err), from.Close())
	case failed != nil:
		return nil, errors.Join(fmt.Errorf("the supervisor of connections has ended: %w", failed), from.Close())
	case rep.Kind != Started:
		return nil, errors.Join(errors.New(rep.Text), from.Close())
	}
	if s.reports, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", from.Fd()), os.O_WRONLY, 0); err != nil {
		return nil, errors.Join(err, from.Close())
	}
	go s.forwardReports(from, refused)
	return s, nil
}

// forkUnconfined starts this program with descriptors after standard error, on a thread that is not confined.
func forkUnconfined(descriptors ...int) (pid int, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	files := []uintptr{null.Fd(), null.Fd(), null.Fd()}
	for _, fd := range descriptors {
		files = append(files, uintptr(fd))
	}
	forked := make(chan struct{})
	go func() {
		defer close(forked)
		pid, err = syscall.ForkExec("/proc/self/exe", []string{"gateway", Command}, &syscall.ProcAttr{Dir: "/", Env: []string{}, Files: files})
	}()
	<-forked
	return pid, err
}

// forwardReports passes on the reports of the supervisor until flush.
func (s *supervisor) forwardReports(from io.Reader, refused func(path string)) {
	defer close(s.flushed)
	for {
		rep, err := ReadReport(from)
		if err != nil || rep.Kind != Refused {
			return
		}
		refused(rep.Text)
	}
}

// flush returns when all refusals up to now have been passed on.
func (s *supervisor) flush() {
	Report{Kind: Exited}.send(s.reports)
	<-s.flushed
}

// isSupervisor reports whether this process was started as the supervisor.
func isSupervisor() bool {
	to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", listenerOfCalls))
	return err == nil && strings.HasPrefix(to, "anon_inode:seccomp") && os.Getppid() == 1
}

// supervise answers the calls of the command until this process is killed.
func supervise() int {
	for _, fd := range []int{listenerOfCalls, toFirst, reachable} {
		unix.CloseOnExec(fd)
	}
	out := os.NewFile(toFirst, "reports")
	var reach []connect.Object
	err := json.NewDecoder(os.NewFile(reachable, "reachable")).Decode(&reach)
	if err == nil {
		err = connect.Start(listenerOfCalls, reach, func(path string) { Report{Kind: Refused, Text: path}.send(out) })
	}
	if err != nil {
		Report{Kind: Failed, Text: err.Error()}.send(out)
		return 1
	}
	Report{Kind: Started}.send(out)
	select {} // it is killed with the first process
}

// keptCapabilities are the capabilities of a command that runs as root: they concern files and users, but not the network, processes of
// others, devices or the kernel. Other users have no capabilities.
var keptCapabilities = map[int]bool{
	unix.CAP_CHOWN: true, unix.CAP_DAC_OVERRIDE: true, unix.CAP_FOWNER: true, unix.CAP_FSETID: true, unix.CAP_KILL: true,
	unix.CAP_SETGID: true, unix.CAP_SETUID: true, unix.CAP_NET_BIND_SERVICE: true,
}

// confine removes privileges of the calling thread. The remaining capabilities are needed to switch to the command's user,
// and disappear with that, or at the latest with execve. listener notifies of the command's calls of connect(2).
func confine(uid int) (listener int, err error) {
	for c := range unix.CAP_LAST_CAP + 1 {
		if uid == 0 && keptCapabilities[c] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL { // EINVAL: unknown to this kernel
			return 0, fmt.Errorf("dropping capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("dropping ambient capabilities: %w", err)
	}
	if err := dropInheritable(); err != nil {
		return 0, fmt.Errorf("dropping inheritable capabilities: %w", err)
	}
	// Otherwise sudo and other setuid programs would restore privileges.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("no_new_privs: %w", err)
	}
	return filterCalls()
}

func dropInheritable() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&head, &sets[0]); err != nil {
		return err
	}
	sets[0].Inheritable, sets[1].Inheritable = 0, 0
	return unix.Capset(&head, &sets[0])
}

// asUser runs f on a thread that has the command's user in every respect (FUSE checks more than the file system IDs),
// without capabilities.
func asUser(s Spec, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() { // switch threads: the parent-death signal of the first thread is lost when its user changes
			defer runtime.UnlockOSThread()
			done <- asUser(s, f)
			return
		}
		err := become(s) // never unlocked: the thread ends with its identity
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// become switches only the calling thread to the user. The functions of package unix change all threads.
func become(s Spec) error {
	ids, uid, gid := groups(s.Groups), uintptr(s.UID), uintptr(s.GID)
	_, _, noGroups := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(ids)), uintptr(unsafe.Pointer(unsafe.SliceData(ids))), 0)
	_, _, noGroup := unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid)
	_, _, noUser := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid)
	if noGroups|noGroup|noUser != 0 {
		return fmt.Errorf("looking as user %d failed: %w", s.UID, errors.Join(errno(noGroups), errno(noGroup), errno(noUser)))
	}
	return nil
}

// errno converts 0 to nil.
func errno(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

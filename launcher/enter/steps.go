package enter

import (
	"encoding/binary"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"boxgate/launcher/container"
)

// Command is a command to start in a box.
type Command struct {
	Process *specs.Process // as in the runtime's configuration; its limits are replaced by Limits
	Limits  []container.Rlimit
	Filter  []unix.SockFilter // for system calls; never empty
	// Groups are the directories of the control groups to join, except that of version 2 in Unified, which is empty on
	// hosts with version 1.
	Groups  []string
	Unified string
	// Executable, if not nil, is a static program of the host that is executed instead of the file that Process.Args[0] names, and
	// Process.Terminal is not set. Its process stays out of the box's PID namespace, so that the box can neither see, trace nor signal it,
	// and enters all others.
	Executable *os.File
	// Lost is called, once at most, if the entering process was killed when it may have started a process that it has not
	// reported. It must kill all processes of the command and reap those that are children of this process. It may be
	// called after [Program.Start] has returned.
	Lost func()
}

// Marks of reports that are no failed calls.
const (
	startedMark  = 0xffffffff // the process ID of the child follows
	terminalMark = 0xfffffffe // a terminal is attached
)

const execStep = "exec"

// steps returns the plan for a command.
func (c Command) steps() (*plan, error) {
	p := &plan{}
	if err := c.outerSteps(p); err != nil {
		return nil, err
	}
	started := p.words(startedMark)
	id := started + 4
	p.call("the process", unix.SYS_CLONE, unix.CLONE_PARENT|unix.CLONE_PARENT_SETTID|uintptr(unix.SIGCHLD), 0, id)
	fork := len(p.ops) - 1
	if err := c.innerSteps(p); err != nil {
		return nil, err
	}
	p.ops[fork].skip = len(p.ops) - 1 - fork // the outer process goes on here
	p.call("the report", unix.SYS_WRITE, reportFD, started, 8)
	p.call("the end", unix.SYS_EXIT_GROUP, 0)
	return p, nil
}

// outerSteps adds the steps on the host, up to the namespaces.
func (c Command) outerSteps(p *plan) error {
	free := uintptr(freeFD)
	if c.Executable != nil {
		p.call("the executable", unix.SYS_FCNTL, executableFD, unix.F_SETFD, unix.FD_CLOEXEC)
		free = executableFD + 1
	}
	p.call("closing descriptors", unix.SYS_CLOSE_RANGE, free, uintptr(^uint32(0)), 0)
	p.call("closing the list", unix.SYS_CLOSE, planFD)
	p.call("the socket", unix.SYS_FCNTL, reportFD, unix.F_SETFD, unix.FD_CLOEXEC)
	p.undumpable()
	if c.Process.NoNewPrivileges {
		p.call("no_new_privs", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1)
	}
	// An anonymous session keyring of root of the host instead of the gateway's. A kernel may lack keys.
	p.call("the session keyring", unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0).ignore(unix.ENOSYS)
	if score := c.Process.OOMScoreAdj; score != nil {
		p.write("the OOM score", "/proc/self/oom_score_adj", fmt.Sprint(*score))
	}
	for _, dir := range c.Groups {
		p.write("the control group "+dir, filepath.Join(dir, "cgroup.procs"), "0")
	}
	for _, l := range c.Limits {
		p.call("a resource limit", unix.SYS_PRLIMIT64, 0, uintptr(l.Resource), p.words(uintptr(l.Soft), uintptr(l.Hard)), 0)
	}
	namespaces := uintptr(unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP)
	if c.Executable != nil {
		namespaces &^= unix.CLONE_NEWPID
	}
	p.call("the namespaces", unix.SYS_SETNS, initFD, namespaces)
	p.call("closing the first process", unix.SYS_CLOSE, initFD)
	return nil
}

// undumpable makes the process invisible to its user's other processes. The kernel undoes it when the user changes.
func (p *plan) undumpable() {
	p.call("hiding the process", unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0)
}

// write writes to a file of the host. The file gets the lowest free descriptor, planFD.
func (p *plan) write(what, file, text string) {
	p.call(what, unix.SYS_OPENAT, at(unix.AT_FDCWD), p.text(file), unix.O_WRONLY|unix.O_CLOEXEC)
	p.call(what, unix.SYS_WRITE, planFD, p.text(text), uintptr(len(text)))
	p.call(what, unix.SYS_CLOSE, planFD)
}

func at(fd int) uintptr { return uintptr(fd) }

// innerSteps adds the steps in the box, up to the command. First the process becomes the box's root, with no more capabilities
// than that, then it looks at paths of the box.
func (c Command) innerSteps(p *plan) error {
	user := c.Process.User
	p.become(0, 0, nil)
	p.call("the session", unix.SYS_SETSID)
	p.defaultSignals()
	root, own, err := c.capabilities()
	if err != nil {
		return err
	}
	p.bound(root)
	if !c.Process.NoNewPrivileges {
		p.filter(c.Filter) // without no_new_privs, this needs CAP_SYS_ADMIN in the box's user namespace
	}
	p.setCapabilities(root)
	if c.Process.Terminal {
		c.terminal(p)
	}
	p.call("chdir to "+c.Process.Cwd, unix.SYS_CHDIR, p.text(c.Process.Cwd))
	p.become(user.UID, user.GID, user.AdditionalGids)
	p.setCapabilities(own)
	if c.Process.NoNewPrivileges {
		p.filter(c.Filter)
	}
	return c.execute(p)
}

// lastSignal is the highest on every architecture that is supported.
const lastSignal = 64

// defaultSignals gives every signal its default effect, and blocks none: a process inherits from the gateway which signals are ignored and
// blocked.
func (p *plan) defaultSignals() {
	action := p.words(0, 0, 0, 0) // struct sigaction of the kernel: SIG_DFL, without flags and mask
	for n := uintptr(1); n <= lastSignal; n++ {
		if n != uintptr(unix.SIGKILL) && n != uintptr(unix.SIGSTOP) {
			p.call("the signals", unix.SYS_RT_SIGACTION, n, action, 0, 8)
		}
	}
	p.call("the blocked signals", unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, p.words(0), 0, 8)
}

// become changes the user, with all its IDs.
func (p *plan) become(uid, gid uint32, groups []uint32) {
	var list []byte
	for _, g := range groups {
		list = binary.LittleEndian.AppendUint32(list, g)
	}
	p.call("the supplementary groups", unix.SYS_SETGROUPS, uintptr(len(groups)), p.put(list))
	p.call("the group", unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid))
	p.call("the user", unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
	p.undumpable()
}

// lastCapability is the highest that the kernel's interface can express.
const lastCapability = 63

// bound removes all others from the bounding set, and all from the ambient set.
func (p *plan) bound(keep uint64) {
	for n := range uintptr(lastCapability + 1) {
		if keep&(1<<n) == 0 {
			p.call("the bounding set", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, n).ignore(unix.EINVAL) // the kernel has fewer
		}
	}
	p.call("the ambient set", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL)
}

// setCapabilities sets the effective and permitted set, and empties the inheritable one.
func (p *plan) setCapabilities(set uint64) {
	low, high := uintptr(uint32(set)), uintptr(set>>32)
	header := p.words(unix.LINUX_CAPABILITY_VERSION_3) // the version, and process 0: the caller
	data := p.words(low|low<<32, high<<32, high)       // effective, permitted, inheritable; twice
	p.call("the capabilities", unix.SYS_CAPSET, header, data)
}

// terminal opens a terminal in the box, makes it the controlling terminal and the standard streams, and sends its other side
// to the gateway. The descriptors are the lowest free ones.
func (c Command) terminal(p *plan) {
	const master, slave = planFD, initFD
	p.call("/dev/ptmx", unix.SYS_OPENAT, at(unix.AT_FDCWD), p.text("/dev/ptmx"), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	const what = "the terminal"
	p.call(what, unix.SYS_IOCTL, master, unix.TIOCSPTLCK, p.words(0))
	if size := c.Process.ConsoleSize; size != nil {
		p.call(what, unix.SYS_IOCTL, master, unix.TIOCSWINSZ, p.words(uintptr(uint16(size.Height))|uintptr(uint16(size.Width))<<16))
	}
	p.call(what, unix.SYS_IOCTL, master, unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY)
	p.call(what, unix.SYS_FCHOWN, slave, uintptr(c.Process.User.UID), uintptr(^uint32(0)))
	for fd := range uintptr(3) {
		p.call(what, unix.SYS_DUP3, slave, fd, 0)
	}
	p.call(what, unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0)
	p.call(what, unix.SYS_SENDMSG, reportFD, p.rights(master), 0)
	p.call(what, unix.SYS_CLOSE, slave)
	p.call(what, unix.SYS_CLOSE, master)
}

// rights adds a message (struct msghdr) with the terminal's mark and a descriptor.
func (p *plan) rights(fd int) uintptr {
	mark := p.words(terminalMark)
	control := unix.UnixRights(fd)
	vector := p.words(mark, 8)
	at := p.put(control)
	return p.words(0, 0, vector, 1, at, uintptr(len(control)), 0)
}

// filter installs the filter for system calls. From here on it applies, so it must allow the following calls; write, execve and
// exit_group at least.
func (p *plan) filter(f []unix.SockFilter) {
	raw := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), len(f)*int(unsafe.Sizeof(unix.SockFilter{})))
	program := p.words(uintptr(len(f)), p.put(raw)) // struct sock_fprog
	p.call("the seccomp filter", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, program)
}

// execute executes the command. A program without a slash is looked up in the PATH of the command's environment, like the
// runtime does: the first one that can be executed.
func (c Command) execute(p *plan) error {
	name := c.Process.Args[0]
	args, env := p.list(c.Process.Args), p.list(c.Process.Env)
	if c.Executable != nil {
		p.call(execStep, unix.SYS_EXECVEAT, executableFD, p.text(""), args, env, unix.AT_EMPTY_PATH)
		return nil
	}
	if strings.Contains(name, "/") {
		p.call(execStep, unix.SYS_EXECVE, p.text(name), args, env)
		return nil
	}
	dirs := filepath.SplitList(valueOf(c.Process.Env, "PATH"))
	for _, dir := range dirs {
		if path.IsAbs(dir) {
			p.call(execStep, unix.SYS_EXECVE, p.text(path.Join(dir, name)), args, env).ignore(unix.ENOENT, unix.EACCES, unix.ENOTDIR)
		}
	}
	p.call(lookupStep, unix.SYS_CLOSE, uintptr(^uint32(0))) // fails
	return nil
}

const lookupStep = "lookup in PATH"

// valueOf returns the last value of a variable.
func valueOf(env []string, name string) (value string) {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			value = v
		}
	}
	return value
}

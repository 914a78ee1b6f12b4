package container

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"boxgate/launcher/namespace"
)

// maxPtys is how many terminals a box may have. The host has kernel.pty.max of them (4,096) in total.
const maxPtys = 64

// Rlimit is one resource limit of the processes of a box.
type Rlimit struct {
	Name       string // in the runtime's configuration
	Resource   int
	Soft, Hard uint64
}

// Rlimits returns the resource limits for each process and each user of a box. Processes of a box cannot raise a hard
// limit. Core dumps are off, because boxes must not feed the host's crash handler.
func Rlimits(lim Limits) []Rlimit {
	pids := uint64(lim.Pids)
	list := []Rlimit{
		{"RLIMIT_NOFILE", unix.RLIMIT_NOFILE, 16 << 10, 64 << 10},
		{"RLIMIT_NPROC", unix.RLIMIT_NPROC, pids, pids},
		{"RLIMIT_SIGPENDING", unix.RLIMIT_SIGPENDING, 16 << 10, 16 << 10}, // also bounds POSIX timers
		{"RLIMIT_MSGQUEUE", unix.RLIMIT_MSGQUEUE, 800 << 10, 800 << 10},   // bytes; the kernel's default
		{"RLIMIT_MEMLOCK", unix.RLIMIT_MEMLOCK, 8 << 20, 8 << 20},         // bytes; the kernel's default
		{"RLIMIT_CORE", unix.RLIMIT_CORE, 0, 0},
	}
	for i, r := range list { // a hard limit above this process's needs CAP_SYS_RESOURCE
		var own unix.Rlimit
		if err := unix.Getrlimit(r.Resource, &own); err == nil {
			list[i].Hard = min(r.Hard, own.Max)
			list[i].Soft = min(r.Soft, own.Max)
		}
	}
	return list
}

// specRlimits returns the limits in the runtime's format. The runtime sets them from outside the box, which needs
// CAP_SYS_RESOURCE. Without that, the processes of a box inherit their limits, see [StartLimited].
func specRlimits(lim Limits) []specs.POSIXRlimit {
	if !canSetRlimits() {
		return nil
	}
	var list []specs.POSIXRlimit
	for _, r := range Rlimits(lim) {
		list = append(list, specs.POSIXRlimit{Type: r.Name, Soft: r.Soft, Hard: r.Hard})
	}
	return list
}

// canSetRlimits reports whether this process has CAP_SYS_RESOURCE.
func canSetRlimits() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	return unix.Capget(&header, &caps[0]) == nil && caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// StartLimited starts the runtime with the limits of a box, which all processes that it starts in the box inherit. The
// runtime is under ptrace until the limits are set, so that it stops before its first instruction.
func StartLimited(cmd *exec.Cmd, lim Limits) error {
	return namespace.OnThread(func() error { // a thread can be a tracer; all ptrace calls must come from it
		cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
		if err := emptyKeyring(); err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		err := limitStopped(cmd.Process.Pid, lim)
		if err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		return err
	})
}

// emptyKeyring gives the thread, and processes that it starts, an anonymous session keyring owned by root instead of this
// process's. A box is created with --no-new-keyring, so that neither it nor its commands use up the few keys that the box's
// user may have.
func emptyKeyring() error {
	_, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
	if errors.Is(err, unix.ENOSYS) { // a kernel without keys
		return nil
	}
	if err != nil {
		return fmt.Errorf("a session keyring: %w", err)
	}
	return nil
}

// limitStopped sets the limits of a process once it has stopped, and lets it continue.
func limitStopped(pid int, lim Limits) error {
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, 0, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	if !status.Stopped() {
		return errors.New("the runtime exited before it started")
	}
	// If the gateway is killed now, the runtime must not continue without its limits.
	if err := unix.PtraceSetOptions(pid, unix.PTRACE_O_EXITKILL); err != nil {
		return err
	}
	for _, r := range Rlimits(lim) {
		if err := unix.Prlimit(pid, r.Resource, &unix.Rlimit{Cur: r.Soft, Max: r.Hard}, nil); err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
	}
	return unix.PtraceDetach(pid)
}

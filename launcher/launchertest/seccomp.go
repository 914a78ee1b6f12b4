package launchertest

import (
	"errors"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Verdict runs a seccomp filter on one call and returns its action. It implements the instructions of libseccomp's filters.
func Verdict(t testing.TB, filter []unix.SockFilter, number, arch uint32, args [6]uint64) uint32 {
	t.Helper()
	word := func(at uint32) uint32 { // of struct seccomp_data
		switch {
		case at == 0:
			return number
		case at == 4:
			return arch
		}
		return uint32(args[(at-16)/8] >> (8 * ((at - 16) % 8)))
	}
	var a uint32
	for pc := 0; pc < len(filter); pc++ {
		in := filter[pc]
		var yes bool
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = word(in.K)
			continue
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= in.K
			continue
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(in.K)
			continue
		case unix.BPF_RET | unix.BPF_K:
			return in.K
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			yes = a == in.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			yes = a >= in.K
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			yes = a > in.K
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			yes = a&in.K != 0
		default:
			t.Fatalf("instruction %d: %+v", pc, in)
		}
		if yes {
			pc += int(in.Jt)
		} else {
			pc += int(in.Jf)
		}
	}
	t.Fatal("the filter has no end")
	return 0
}

// InstalledFilter returns the first seccomp filter that was installed in a process (ptrace(2), PTRACE_SECCOMP_GET_FILTER).
// It needs root.
func InstalledFilter(t testing.TB, pid int) []unix.SockFilter {
	t.Helper()
	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(pid); err != nil {
		t.Fatal(err)
	}
	if err := unix.PtraceInterrupt(pid); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.PtraceDetach(pid) }()
	const maximum = unix.BPF_MAXINSNS
	filter := make([]unix.SockFilter, maximum)
	for end := time.Now().Add(time.Minute); ; runtime.Gosched() {
		n, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(pid), 0, uintptr(unsafe.Pointer(&filter[0])), 0, 0)
		if errno == 0 {
			return filter[:n]
		}
		if !errors.Is(errno, unix.ESRCH) || time.Now().After(end) { // ESRCH: it has not stopped yet
			t.Fatalf("the filter of process %d: %v", pid, errno)
		}
	}
}

package inside

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// This file blocks access of the command that no namespace blocks: typing into the terminal of the shell that started it
// (TIOCSTI, TIOCLINUX), and sockets of families that bypass network namespaces, to a hypervisor (AF_VSOCK) or to devices.
// io_uring could open them without the filter. Package connect decides what connect(2) may reach; a Unix datagram socket
// has its destination where no filter can see it, and is refused. For a key, the kernel runs a program of root's in the
// namespaces of the host (/sbin/request-key), which may query a name server; and keyrings belong to the user, regardless of
// the namespace. User namespaces can be created, but not entered: the creator of a user namespace on the host, as of
// rootless containers, has every capability over it, and could then enter the network namespace that belongs to it, which
// bypasses the gateway. The command may see that where it is mounted, or open it by a file handle (since Linux 6.18). The
// other calls are refused to containers by default: they make the kernel run or trace code for the caller.

// families are the families of sockets, in addition to Unix sockets, that belong to a network namespace or lead nowhere.
var families = []uint32{unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_ALG}

// table has the numbers of system calls for one architecture.
type table struct {
	arch                      uint32
	ioctl, socket, socketpair uint32
	connect, setns            uint32
	refused                   []uint32 // with any arguments
}

const (
	socketcall386 = 102 // hides the family
	x32Bit        = 0x40000000

	// io_uring, on every architecture: a ring could also be inherited.
	uringSetup, uringEnter, uringRegister = 425, 426, 427
	socketType                            = 0xf // SOCK_TYPE_MASK
)

// Refused calls of 32-bit programs: add_key, request_key, keyctl, bpf, perf_event_open and userfaultfd.
var (
	refused386 = []uint32{286, 287, 288, 357, 336, 374, uringSetup, uringEnter, uringRegister, socketcall386}
	refusedARM = []uint32{309, 310, 311, 386, 364, 388, uringSetup, uringEnter, uringRegister}
)

// tables returns the tables of the machine's architecture and of its 32-bit programs.
func tables() ([]table, error) {
	own := table{
		ioctl: unix.SYS_IOCTL, socket: unix.SYS_SOCKET, socketpair: unix.SYS_SOCKETPAIR, connect: unix.SYS_CONNECT, setns: unix.SYS_SETNS,
		refused: []uint32{
			unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
			uringSetup, uringEnter, uringRegister,
		},
	}
	switch runtime.GOARCH {
	case "amd64":
		own.arch = unix.AUDIT_ARCH_X86_64
		return []table{own, {unix.AUDIT_ARCH_I386, 54, 359, 360, 362, 346, refused386}}, nil
	case "arm64":
		own.arch = unix.AUDIT_ARCH_AARCH64
		return []table{own, {unix.AUDIT_ARCH_ARM, 54, 281, 288, 283, 375, refusedARM}}, nil
	}
	return nil, fmt.Errorf("gateway run does not know the system calls of %s", runtime.GOARCH)
}

// Offsets in struct seccomp_data. Arguments have 64 bits, little-endian, and the kernel reads the lower 32.
const (
	atNumber = 0
	atArch   = 4
	atFirst  = 16
	atSecond = 24
)

func deny(errno unix.Errno) bpf.Instruction {
	return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(errno)}
}

var allow = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}

// program returns the filter. Calls of an unknown architecture are refused.
func program() ([]bpf.Instruction, error) {
	known, err := tables()
	if err != nil {
		return nil, err
	}
	out := []bpf.Instruction{}
	for _, t := range known {
		body := t.calls()
		out = append(out, bpf.LoadAbsolute{Off: atArch, Size: 4}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: t.arch, SkipTrue: uint8(len(body))})
		out = append(out, body...)
	}
	return append(out, deny(unix.ENOSYS)), nil
}

// calls returns the filter for one architecture. It ends with allow.
func (t table) calls() []bpf.Instruction {
	out := []bpf.Instruction{bpf.LoadAbsolute{Off: atNumber, Size: 4}}
	when := func(number uint32, then ...bpf.Instruction) {
		out = append(out, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: number, SkipTrue: uint8(len(then))})
		out = append(out, then...)
	}
	if t.arch == unix.AUDIT_ARCH_X86_64 {
		out = append(out, bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: x32Bit, SkipTrue: 1}, deny(unix.ENOSYS))
	}
	for _, number := range t.refused {
		when(number, deny(unix.ENOSYS))
	}
	when(t.ioctl, bpf.LoadAbsolute{Off: atSecond, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.TIOCSTI, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.TIOCLINUX, SkipTrue: 1},
		allow, deny(unix.EPERM))
	family := []bpf.Instruction{
		bpf.LoadAbsolute{Off: atFirst, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.AF_UNIX, SkipTrue: 6},
		bpf.LoadAbsolute{Off: atSecond, Size: 4}, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: socketType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOCK_STREAM, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOCK_SEQPACKET, SkipTrue: 1},
		deny(unix.ESOCKTNOSUPPORT), allow, // SOCK_RAW is the same as SOCK_DGRAM
	}
	for _, f := range families {
		family = append(family, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: f, SkipTrue: 1}, allow)
	}
	family = append(family, deny(unix.EAFNOSUPPORT))
	when(t.socket, family...)
	when(t.socketpair, family...)
	when(t.setns, bpf.LoadAbsolute{Off: atSecond, Size: 4}, // type 0 is any
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.CLONE_NEWUSER, SkipTrue: 1},
		allow, deny(unix.EPERM))
	when(t.connect, bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF})
	return append(out, allow)
}

// filterCalls installs the filter on the calling thread, also for all processes forked from it. listener notifies of their
// calls of connect(2).
func filterCalls() (listener int, err error) {
	instructions, err := program()
	if err != nil {
		return 0, err
	}
	raw, err := bpf.Assemble(instructions)
	if err != nil {
		return 0, err
	}
	filters := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filters[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filters)), Filter: &filters[0]}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filters)
	switch errno {
	case 0:
		return int(fd), nil
	case unix.EBUSY:
		return 0, errors.New("this process already has a seccomp supervisor (user notification), and the kernel allows only one: start gateway run outside of that sandbox")
	}
	return 0, errors.Join(errors.New("the kernel does not support filters of system calls (CONFIG_SECCOMP_FILTER)"), errno)
}

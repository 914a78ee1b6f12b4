package inside

import (
	"encoding/binary"
	"runtime"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// judge runs the filter on a call. The VM of package bpf reads words in network byte order.
func judge(t *testing.T, arch, number uint32, first, second uint64) uint32 {
	t.Helper()
	filter, err := program()
	if err != nil {
		t.Fatal(err)
	}
	vm, err := bpf.NewVM(filter)
	if err != nil {
		t.Fatal(err)
	}
	var data []byte
	for _, word := range []uint32{number, arch, 0, 0, uint32(first), uint32(first >> 32), uint32(second), uint32(second >> 32)} {
		data = binary.BigEndian.AppendUint32(data, word)
	}
	verdict, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(verdict)
}

func TestFilterOfCalls(t *testing.T) {
	t.Parallel()
	known, err := tables()
	if err != nil {
		t.Fatal(err)
	}
	refused := func(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) }
	for _, own := range known {
		for _, c := range []struct {
			what          string
			number        uint32
			first, second uint64
			want          uint32
		}{
			{"typing into the terminal", own.ioctl, 0, unix.TIOCSTI, refused(unix.EPERM)},
			{"with bits that the kernel ignores", own.ioctl, 0, 7<<32 | unix.TIOCSTI, refused(unix.EPERM)},
			{"pasting on the console", own.ioctl, 0, unix.TIOCLINUX, refused(unix.EPERM)},
			{"the size of the terminal", own.ioctl, 0, unix.TIOCGWINSZ, unix.SECCOMP_RET_ALLOW},
			{"vsock", own.socket, unix.AF_VSOCK, 0, refused(unix.EAFNOSUPPORT)},
			{"vsock in a pair", own.socketpair, unix.AF_VSOCK, 0, refused(unix.EAFNOSUPPORT)},
			{"vsock with bits that the kernel ignores", own.socket, 1<<32 | unix.AF_VSOCK, 0, refused(unix.EAFNOSUPPORT)},
			{"packets", own.socket, unix.AF_PACKET, 0, refused(unix.EAFNOSUPPORT)},
			{"IPv4", own.socket, unix.AF_INET, 0, unix.SECCOMP_RET_ALLOW},
			{"IPv6", own.socket, unix.AF_INET6, 0, unix.SECCOMP_RET_ALLOW},
			{"a Unix socket", own.socket, unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, unix.SECCOMP_RET_ALLOW},
			{"a pair of Unix sockets", own.socketpair, unix.AF_UNIX, unix.SOCK_SEQPACKET | unix.SOCK_NONBLOCK, unix.SECCOMP_RET_ALLOW},
			{"datagrams to paths", own.socket, unix.AF_UNIX, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC, refused(unix.ESOCKTNOSUPPORT)},
			{"datagrams to paths by a pair", own.socketpair, unix.AF_UNIX, unix.SOCK_DGRAM, refused(unix.ESOCKTNOSUPPORT)},
			{"datagrams by another name", own.socket, unix.AF_UNIX, unix.SOCK_RAW, refused(unix.ESOCKTNOSUPPORT)},
			{"datagrams with bits that the kernel ignores", own.socket, 1<<32 | unix.AF_UNIX, 1<<32 | unix.SOCK_DGRAM, refused(unix.ESOCKTNOSUPPORT)},
			{"datagrams over IP", own.socket, unix.AF_INET, unix.SOCK_DGRAM, unix.SECCOMP_RET_ALLOW},
			{"connecting", own.connect, 3, 0, unix.SECCOMP_RET_USER_NOTIF},
			{"entering any namespace", own.setns, 3, 0, refused(unix.EPERM)},
			{"entering a user namespace", own.setns, 3, unix.CLONE_NEWUSER, refused(unix.EPERM)},
			{"entering several", own.setns, 3, unix.CLONE_NEWNET | unix.CLONE_NEWUSER, refused(unix.EPERM)},
			{"entering any, with bits that the kernel ignores", own.setns, 3, 1 << 32, refused(unix.EPERM)},
			{"entering a network namespace", own.setns, 3, unix.CLONE_NEWNET, unix.SECCOMP_RET_ALLOW},
			{"io_uring", uringSetup, 0, 0, refused(unix.ENOSYS)},
			{"a ring that was inherited", uringEnter, 0, 0, refused(unix.ENOSYS)},
			{"its registrations", uringRegister, 0, 0, refused(unix.ENOSYS)},
		} {
			if got := judge(t, own.arch, c.number, c.first, c.second); got != c.want {
				t.Errorf("%s on %#x: %#x, not %#x", c.what, own.arch, got, c.want)
			}
		}
	}
	for arch, numbers := range map[uint32][]uint32{ // add_key, request_key, keyctl, bpf, perf_event_open, userfaultfd
		unix.AUDIT_ARCH_X86_64: {248, 249, 250, 321, 298, 323}, unix.AUDIT_ARCH_I386: {286, 287, 288, 357, 336, 374},
		unix.AUDIT_ARCH_AARCH64: {217, 218, 219, 280, 241, 282}, unix.AUDIT_ARCH_ARM: {309, 310, 311, 386, 364, 388},
	} { // other architectures are refused as unknown
		for _, number := range numbers {
			if got := judge(t, arch, number, 0, 0); got != refused(unix.ENOSYS) {
				t.Errorf("call %d on %#x: %#x", number, arch, got)
			}
		}
	}
	if got := judge(t, 0x1234, 0, 0, 0); got != refused(unix.ENOSYS) {
		t.Errorf("an unknown architecture: %#x", got)
	}
	if runtime.GOARCH == "amd64" {
		if got := judge(t, unix.AUDIT_ARCH_X86_64, x32Bit|unix.SYS_SOCKET, unix.AF_VSOCK, 0); got != refused(unix.ENOSYS) {
			t.Errorf("the x32 interface: %#x", got)
		}
		if got := judge(t, unix.AUDIT_ARCH_I386, socketcall386, 1, 0); got != refused(unix.ENOSYS) {
			t.Errorf("socketcall: %#x", got)
		}
	}
}

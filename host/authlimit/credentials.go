package authlimit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Credentials are the user and groups of the process that connected to a Unix socket, at that time.
type Credentials struct {
	UID    int
	Login  int      // of root: the user who logged in on the host and became root, as by sudo; 0: unknown
	groups []uint32 // the process's group and its supplementary groups
}

// IsMember reports whether the process belongs to a group.
func (c Credentials) IsMember(gid int) bool {
	return gid >= 0 && int64(gid) <= int64(^uint32(0)) && slices.Contains(c.groups, uint32(gid))
}

// CredentialsOf returns the credentials of the client of a request whose server has [ConnContext]. It returns false unless the
// request came over a Unix socket.
func CredentialsOf(ctx context.Context) (Credentials, bool) {
	c, ok := ctx.Value(connKey{}).(*conn)
	if !ok {
		return Credentials{}, false
	}
	u, ok := c.Conn.(*net.UnixConn)
	if !ok {
		return Credentials{}, false
	}
	c.asked.Do(func() { c.credentials, c.unknown = credentialsOf(u) })
	return c.credentials, c.unknown == nil
}

// credentialsOf reads the credentials of the other end of a Unix socket.
func credentialsOf(u *net.UnixConn) (c Credentials, err error) {
	raw, err := u.SyscallConn()
	if err != nil {
		return c, err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		var peer *unix.Ucred
		if peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		c.UID = int(peer.Uid)
		if c.UID == 0 {
			c.Login = loginOf(fd, peer.Pid)
		}
		c.groups, err = peerGroups(fd)
		c.groups = append(c.groups, peer.Gid)
	})
	return c, errors.Join(ctlErr, err)
}

// loginOf returns the user who logged in, of the process at the other end of a Unix socket, or 0. The kernel sets that user at the login,
// and sudo does not change it. A kernel without SO_PEERPIDFD (before Linux 6.5) does not tell a process from a later one with the
// same ID, so there it is unknown.
func loginOf(socket uintptr, pid int32) int {
	pidfd, err := unix.GetsockoptInt(int(socket), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return 0
	}
	defer unix.Close(pidfd)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/loginuid", pid))
	if err != nil {
		return 0
	}
	uid, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 32)
	if err != nil || uid == math.MaxUint32 { // nobody has logged in
		return 0
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0); err != nil || n != 0 { // it has ended: the file may be another's
		return 0
	}
	return int(uid)
}

// peerGroups reads the supplementary groups of the other end of a Unix socket (SO_PEERGROUPS, Linux 4.13).
func peerGroups(fd uintptr) ([]uint32, error) {
	list := make([]uint32, 64)
	for {
		size := uint32(4 * len(list))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&list[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == unix.ERANGE && int(size) > 4*len(list): // the kernel returns the size that is needed
			list = make([]uint32, size/4)
		case errno == unix.ENODATA: // no supplementary groups
			return nil, nil
		case errno != 0:
			return nil, errno
		default:
			return list[:size/4], nil
		}
	}
}

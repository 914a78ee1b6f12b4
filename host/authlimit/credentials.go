package authlimit

import (
	"context"
	"errors"
	"net"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Credentials are the user and groups of the process that connected to a Unix socket, at that time.
type Credentials struct {
	UID    int
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
	found, err := credentialsOf(u)
	return found, err == nil
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
		c.groups, err = peerGroups(fd)
		c.groups = append(c.groups, peer.Gid)
	})
	return c, errors.Join(ctlErr, err)
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

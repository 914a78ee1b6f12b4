package boxfs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenRoot opens the root of a process, if the process is in the pinned user namespace: its ID may have been reused by
// another process. marker is a file that the root of every box has; it is missing with runtimes that keep boxes outside the
// host's file system.
func OpenRoot(pid int, userPin, marker string) (*os.File, error) {
	process, err := os.OpenFile(fmt.Sprintf("/proc/%d", pid), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer process.Close()
	if err := checkUserNamespace(process, userPin); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(int(process.Fd()), "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	root := os.NewFile(uintptr(fd), "root of a box")
	at, err := unix.Openat2(fd, marker, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		root.Close()
		return nil, ErrElsewhere
	}
	unix.Close(at)
	return root, nil
}

// InUserNamespace reports whether a process is in the pinned user namespace.
func InUserNamespace(pid int, userPin string) bool {
	process, err := os.OpenFile(fmt.Sprintf("/proc/%d", pid), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return false
	}
	defer process.Close()
	return checkUserNamespace(process, userPin) == nil
}

// checkUserNamespace returns an error unless a process, given by its directory in /proc, is in the pinned user namespace.
func checkUserNamespace(process *os.File, userPin string) error {
	var ours, pinned unix.Stat_t
	if err := errors.Join(unix.Fstatat(int(process.Fd()), "ns/user", &ours, 0), unix.Stat(userPin, &pinned)); err != nil {
		return err
	}
	if ours.Ino != pinned.Ino || ours.Dev != pinned.Dev {
		return os.ErrNotExist
	}
	return nil
}

// ErrElsewhere is returned for boxes whose files are invisible to the host.
var ErrElsewhere = errors.New("the files of this box are not in a file system of the host")

// IsFileOrMissing reports whether a path in the root of a box is a regular file or does not exist. It opens the path only
// with O_PATH.
func IsFileOrMissing(root *os.File, name string) bool {
	fd, err := unix.Openat2(int(root.Fd()), name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
}

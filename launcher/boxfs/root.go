package boxfs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenRoot opens the root of the process with that ID, if it is in the pinned user namespace: another process may have
// got the ID of one that ended. marker is a file that the root of a box has; a runtime whose boxes are not in the host's
// file system has it nowhere.
func OpenRoot(pid int, userPin, marker string) (*os.File, error) {
	process, err := os.OpenFile(fmt.Sprintf("/proc/%d", pid), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer process.Close()
	if err := inhabits(process, userPin); err != nil {
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

// Inhabits reports whether the process with that ID is in the pinned user namespace.
func Inhabits(pid int, userPin string) bool {
	process, err := os.OpenFile(fmt.Sprintf("/proc/%d", pid), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return false
	}
	defer process.Close()
	return inhabits(process, userPin) == nil
}

// inhabits returns why a process, given by its directory in /proc, is not in the pinned user namespace.
func inhabits(process *os.File, userPin string) error {
	var ours, pinned unix.Stat_t
	if err := errors.Join(unix.Fstatat(int(process.Fd()), "ns/user", &ours, 0), unix.Stat(userPin, &pinned)); err != nil {
		return err
	}
	if ours.Ino != pinned.Ino || ours.Dev != pinned.Dev {
		return os.ErrNotExist
	}
	return nil
}

// ErrElsewhere is returned for boxes whose files the host cannot see.
var ErrElsewhere = errors.New("the files of this box are not in a file system of the host")

// IsFileOrMissing reports whether a path in the root of a box leads to a file, or to nothing. Nothing is opened on the way.
func IsFileOrMissing(root *os.File, name string) bool {
	fd, err := unix.Openat2(int(root.Fd()), name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
}

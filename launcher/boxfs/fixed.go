package boxfs

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxSteps is the largest number of names and links in a path that IsFixed follows.
const maxSteps = 256

// IsFixed reports whether an absolute path in the root of a box leads to a directory that a user of the box can neither change nor
// exchange. Each directory on the way, through links, belongs to another user, and neither the group with the user's ID nor everyone
// may write in it. user is an ID of the host. A path that leads to no directory is not fixed. Nothing is opened but with O_PATH.
func IsFixed(root *os.File, path string, user int) bool {
	w := walk{root: root, user: uint32(user), rest: strings.Split(path, "/")}
	defer func() { w.at.Close() }()
	if !w.toRoot() {
		return false
	}
	for range maxSteps {
		if !w.isClosed() {
			return false
		}
		w.rest = slices.DeleteFunc(w.rest, func(name string) bool { return name == "" || name == "." })
		if len(w.rest) == 0 {
			return true
		}
		if !w.step() {
			return false
		}
	}
	return false
}

// walk is a path that is followed from the root of a box.
type walk struct {
	root, at *os.File
	user     uint32
	rest     []string // names that remain
}

// toRoot continues at the root.
func (w *walk) toRoot() bool { return w.enter(w.root, ".") }

// enter continues at a directory in another one.
func (w *walk) enter(dir *os.File, name string) bool {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	w.at.Close()
	w.at = os.NewFile(uintptr(fd), name)
	return true
}

// step follows the first of the names that remain. It returns false if that is no directory or link.
func (w *walk) step() bool {
	name := w.rest[0]
	w.rest = w.rest[1:]
	if name == ".." {
		root, rerr := w.root.Stat()
		at, aerr := w.at.Stat()
		return rerr == nil && aerr == nil && (os.SameFile(root, at) || w.enter(w.at, name))
	}
	dir := w.at
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	next := os.NewFile(uintptr(fd), name)
	switch fi, err := next.Stat(); {
	case err == nil && fi.IsDir():
		w.at = next
		return dir.Close() == nil
	case err != nil || fi.Mode()&os.ModeSymlink == 0:
		next.Close()
		return false
	}
	defer next.Close()
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", target)
	if err != nil || n == 0 || n == len(target) {
		return false
	}
	w.rest = append(strings.Split(string(target[:n]), "/"), w.rest...)
	return target[0] != '/' || w.toRoot()
}

// isClosed reports whether the user can make no entries in the directory.
func (w *walk) isClosed() bool {
	var st unix.Stat_t
	if unix.Fstat(int(w.at.Fd()), &st) != nil || st.Uid == w.user || st.Mode&0o002 != 0 {
		return false
	}
	if st.Mode&0o020 == 0 {
		return true
	}
	// A list of further users counts as the group's permissions.
	_, err := unix.Getxattr(fmt.Sprintf("/proc/self/fd/%d", w.at.Fd()), "system.posix_acl_access", nil)
	return st.Gid != w.user && err != nil
}

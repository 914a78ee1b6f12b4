package inside

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// This process has every privilege, and covers files in directories that others can write to. A user who replaces a name by
// a link must not be able to choose the file that is changed. So a file is opened once, and everything after that uses the
// descriptor. Mounts get their owner and mode when they are mounted: no file of the host is ever changed.

// emptyFile replaces a hidden file: it is empty, and only root can open it.
const emptyFile = Private + "/nothing"

// place is a file or directory of the host, held open even if its name changes.
type place struct {
	path string // original path
	fd   int
	stat unix.Stat_t
}

// openPlace opens a path relative to a directory. flags are flags of open(2) in addition to O_PATH.
func openPlace(dir int, path string, flags int) (place, error) {
	p := place{path: path}
	for {
		var err error
		if p.fd, err = unix.Openat(dir, path, unix.O_PATH|unix.O_CLOEXEC|flags, 0); err == nil {
			break
		}
		if err != unix.EINTR { // EINTR: the runtime's own signals cause it in FUSE file systems
			return place{}, err
		}
	}
	if err := unix.Fstat(p.fd, &p.stat); err != nil {
		p.close()
		return place{}, err
	}
	return p, nil
}

func (p place) close() { _ = unix.Close(p.fd) }

func (p place) hasType(kind uint32) bool { return p.stat.Mode&unix.S_IFMT == kind }

// name returns a path that leads to the place, even if its original path leads elsewhere.
func (p place) name() string { return "/proc/self/fd/" + strconv.Itoa(p.fd) }

// cover hides a file.
func (p place) cover() error { return unix.Mount(emptyFile, p.name(), "", unix.MS_BIND, "") }

// hide covers a file or a directory. A missing one is not an error.
func hide(path string) error {
	p, err := openPlace(unix.AT_FDCWD, path, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	defer p.close()
	return p.hide()
}

// hideSocket covers a socket, if it still exists, so that programs of the command do not find it and start their own
// server. It is package connect that prevents connections. If root may not look, as in a file system that belongs to a user
// (FUSE) or comes from another host (NFS), hideSocket looks as the command's user.
func hideSocket(s Spec, path string) error {
	h, err := openSocket(path)
	if err != nil && !isGone(err) && s.UID != 0 {
		err = asUser(s, func() (err error) { h, err = openSocket(path); return err })
		if errors.Is(err, unix.EACCES) {
			return nil // the command, with the same rights, cannot reach it either
		}
	}
	switch {
	case isGone(err):
		return nil // or covered already
	case err != nil:
		return fmt.Errorf("cannot check whether the command could reach the host's socket %q: %w; remove the socket, or unmount its file system", path, err)
	}
	defer h.close()
	named, beside := h.matchPaths(s.AllowedSockets)
	switch {
	case named:
		return nil
	case beside:
		err = h.socket.cover()
	default:
		err = h.cover()
	}
	if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: removed since
		return fmt.Errorf("%q: %w", path, err)
	}
	return nil
}

// matchPaths reports whether one of the paths leads to the socket, and whether one leads to another socket in the same
// directory.
func (h openedSocket) matchPaths(paths []string) (named, beside bool) {
	for _, path := range paths {
		var socket, dir unix.Stat_t
		if err := errors.Join(unix.Lstat(path, &socket), unix.Stat(filepath.Dir(path), &dir)); err != nil {
			continue
		}
		named = named || socket.Dev == h.socket.stat.Dev && socket.Ino == h.socket.stat.Ino
		beside = beside || dir.Dev == h.dir.stat.Dev && dir.Ino == h.dir.stat.Ino
	}
	return named, beside
}

// isGone reports whether the error means that a path leads nowhere, for any user. That includes links in a circle, which
// the owner of a socket can create.
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// openedSocket is a socket and its directory.
type openedSocket struct{ dir, socket place }

// openSocket opens the socket at a path. A file of another type counts as missing.
func openSocket(path string) (h openedSocket, err error) {
	dir, name := filepath.Split(path) // unlike filepath.Dir, Split keeps "..", which may follow a link
	if h.dir, err = openPlace(unix.AT_FDCWD, dir, unix.O_DIRECTORY); err != nil {
		return h, err
	}
	if h.socket, err = openPlace(h.dir.fd, name, unix.O_NOFOLLOW); err != nil {
		h.dir.close()
		return h, err
	}
	h.socket.path = path
	if !h.socket.hasType(unix.S_IFSOCK) {
		h.close()
		return h, unix.ENOENT
	}
	return h, nil
}

func (h openedSocket) close() {
	h.socket.close()
	h.dir.close()
}

// cover hides the socket. A directory that contains only sockets, as for tmux, ssh-agent and X11, is covered as a
// whole, so that the command can create its own sockets there.
func (h openedSocket) cover() error {
	if h.dir.stat.Mode&unix.S_ISVTX != 0 || !h.dir.hasOnlySockets() { // shared like /tmp, or with files
		return h.socket.cover()
	}
	return h.dir.coverAlike()
}

// coverAlike covers a directory by an empty one with the same owner and mode.
func (p place) coverAlike() error {
	options := fmt.Sprintf("mode=%o,uid=%d,gid=%d,size=1m", p.stat.Mode&0o7777, p.stat.Uid, p.stat.Gid)
	return unix.Mount("tmpfs", p.name(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
}

func (p place) hasOnlySockets() bool {
	entries, err := os.ReadDir(p.name())
	if err != nil {
		return false
	}
	for _, e := range entries {
		if e.Type() != os.ModeSocket {
			return false
		}
	}
	return true
}

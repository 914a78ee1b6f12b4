// Package nslock ensures that a network namespace has only one gateway, and lets root's commands find it. The lock is a
// file named after the namespace, in a directory that only root can enter, so no other user can take the lock or
// impersonate the gateway.
package nslock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dir contains the locks and control sockets of all network namespaces of the host.
const Dir = "/run/boxgate-net"

// ErrTaken means that another process holds the lock.
var ErrTaken = errors.New("the network namespace has a gateway")

// path returns the path of a file for the network namespace of the calling thread.
func path(suffix string) (string, error) {
	info, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return "", fmt.Errorf("the network namespace cannot be told: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", errors.New("the network namespace cannot be told")
	}
	return filepath.Join(Dir, fmt.Sprintf("%d-%d%s", st.Dev, st.Ino, suffix)), nil
}

// Socket returns the path of the control socket for the network namespace of the calling thread.
func Socket() (string, error) { return path(".sock") }

// Lock is the lock of a network namespace. It is held as long as any process has a descriptor of it open. It is a
// [syscall.Conn], so that it can be passed to another process.
type Lock struct {
	*os.File
	socket string
	owned  bool
}

// Acquire locks the network namespace of the calling thread, or returns [ErrTaken].
func Acquire() (*Lock, error) {
	name, err := path(".lock")
	if err != nil {
		return nil, err
	}
	if err := makeDir(); err != nil {
		return nil, err
	}
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrTaken
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if isAt(f, name) {
			return lockOf(f, true)
		}
		if err := f.Close(); err != nil { // its holder has removed the file
			return nil, err
		}
	}
}

// Inherit returns a lock passed on by another process, which still owns its files: see [Lock.Own].
func Inherit(f *os.File) (*Lock, error) { return lockOf(f, false) }

func lockOf(f *os.File, owned bool) (*Lock, error) {
	socket, err := Socket()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Lock{f, socket, owned}, nil
}

// Own makes this process the owner of the lock's files.
func (l *Lock) Own() { l.owned = true }

// Leave gives up ownership of the lock's files to another process.
func (l *Lock) Leave() { l.owned = false }

// Remove removes the lock's files, unless another process owns them. Call it before Close, which releases the lock.
func (l *Lock) Remove() {
	if !l.owned {
		return
	}
	l.owned = false
	_ = os.Remove(l.socket)
	if name, err := path(".lock"); err == nil && isAt(l.File, name) {
		_ = os.Remove(name)
	}
}

// Listen opens the control socket, replacing one left by a killed gateway.
func (l *Lock) Listen() (*net.UnixListener, error) {
	if err := os.Remove(l.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: l.socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false) // another process may own the path by then
	return ln, nil
}

// makeDir makes the directory, or checks that only root can enter it.
func makeDir() error {
	if err := os.Mkdir(Dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(Dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || info.Mode().Perm()&0o077 != 0 || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not a directory that only root can enter: remove it", Dir)
	}
	return nil
}

// isAt reports whether name still refers to the file f.
func isAt(f *os.File, name string) bool {
	have, err := f.Stat()
	if err != nil {
		return false
	}
	want, err := os.Lstat(name)
	return err == nil && os.SameFile(have, want)
}

// RemoveStale removes the files that a killed gateway left for the network namespace of the calling thread.
func RemoveStale() error {
	l, err := Acquire()
	if err != nil {
		return err
	}
	l.Remove()
	_ = os.Remove(Dir) // fails if other gateways' files are there
	return l.Close()
}

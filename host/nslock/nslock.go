// Package nslock lets a network namespace have one gateway, which commands of root find there. The lock is a file that is named
// by the namespace, in a directory that only root can enter: no other user can take it, or answer in the gateway's place.
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

// Dir has the locks and the sockets of all network namespaces of the host.
const Dir = "/run/boxgate-net"

// ErrTaken says that another process holds the namespace.
var ErrTaken = errors.New("the network namespace has a gateway")

// path is that of what belongs to the network namespace of the calling thread.
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

// Socket is the path at which the gateway of the network namespace of the calling thread answers commands.
func Socket() (string, error) { return path(".sock") }

// Lock is a network namespace that is held as long as a descriptor of it is open in any process. It is a [syscall.Conn], so that it can be passed on.
type Lock struct {
	*os.File
	socket string
	owned  bool
}

// Take takes the network namespace of the calling thread, or returns [ErrTaken].
func Take() (*Lock, error) {
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
		if err := f.Close(); err != nil { // whoever held it has removed it
			return nil, err
		}
	}
}

// Inherit returns a lock that another process has passed on and still relies on: see [Lock.Own].
func Inherit(f *os.File) (*Lock, error) { return lockOf(f, false) }

func lockOf(f *os.File, owned bool) (*Lock, error) {
	socket, err := Socket()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Lock{f, socket, owned}, nil
}

// Own says that the process that has passed the lock on does not rely on it any more.
func (l *Lock) Own() { l.owned = true }

// Leave says that another process relies on the lock from now on.
func (l *Lock) Leave() { l.owned = false }

// Remove removes the files, unless another process relies on them. Call it before Close, which lets go of the lock.
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

// Listen opens the socket, in the place of one that a killed gateway has left.
func (l *Lock) Listen() (*net.UnixListener, error) {
	if err := os.Remove(l.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: l.socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false) // it may be another process's by then
	return ln, nil
}

// makeDir makes the directory, or checks that nobody but root can enter it.
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

// isAt reports whether a file is still the one of that name.
func isAt(f *os.File, name string) bool {
	have, err := f.Stat()
	if err != nil {
		return false
	}
	want, err := os.Lstat(name)
	return err == nil && os.SameFile(have, want)
}

// Forget removes what a killed gateway has left of the network namespace of the calling thread.
func Forget() error {
	l, err := Take()
	if err != nil {
		return err
	}
	l.Remove()
	_ = os.Remove(Dir) // unless another gateway's is there
	return l.Close()
}

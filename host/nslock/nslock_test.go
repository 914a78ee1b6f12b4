package nslock

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/host/netns"
	"boxgate/internal/nightly"
)

// TestANamespaceHasOneHolder: as long as any process has the lock, no other can take it. Only the last holder removes the
// files, and then the next process can take it.
func TestANamespaceHasOneHolder(t *testing.T) {
	nightly.Root(t)
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	if err := ns.Do(func() error { return holders(t) }); err != nil {
		t.Fatal(err)
	}
}

func holders(t *testing.T) error {
	first, err := Acquire()
	if err != nil {
		return err
	}
	if _, err := Acquire(); !errors.Is(err, ErrTaken) {
		t.Error("a second holder:", err)
	}
	ln, err := first.Listen()
	if err != nil {
		return err
	}
	fd, err := unix.FcntlInt(first.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	next, err := Inherit(os.NewFile(uintptr(fd), "lock"))
	if err != nil {
		return err
	}
	next.Remove() // the first holder still owns the files
	socket, err := Socket()
	if err != nil {
		return err
	}
	if c, err := net.Dial("unix", socket); err != nil {
		t.Error("the socket is gone:", err)
	} else {
		c.Close()
	}
	first.Leave()
	first.Remove()
	next.Own()
	if err := errors.Join(ln.Close(), first.Close()); err != nil {
		return err
	}
	if _, err := Acquire(); !errors.Is(err, ErrTaken) {
		t.Error("a second holder after the lock was passed on:", err)
	}
	if _, err := os.Lstat(socket); err != nil {
		t.Error(err)
	}
	info, err := os.Lstat(Dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Error(info, err)
	}
	next.Remove()
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Error("the socket is left:", err)
	}
	again, err := Acquire() // the previous file is removed, and locked until it is closed
	if err != nil {
		return err
	}
	again.Remove()
	return errors.Join(next.Close(), again.Close())
}

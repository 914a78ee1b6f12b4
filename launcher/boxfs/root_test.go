package boxfs

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpenRoot: the root of a process is opened only if the process is in the user namespace of the box, and the root has
// the marker of a box.
func TestOpenRoot(t *testing.T) {
	t.Parallel()
	dir := newRoot(t)
	for name, make := range map[string]func(string) error{
		"marker": func(p string) error { return os.WriteFile(p, nil, 0o644) }, "dir": func(p string) error { return os.Mkdir(p, 0o755) },
		"link": func(p string) error { return os.Symlink("/marker", p) }, "away": func(p string) error { return os.Symlink("../../../etc/passwd", p) },
	} {
		if err := make(dir + "/" + name); err != nil {
			t.Fatal(err)
		}
	}
	own := "/proc/self/ns/user"
	if _, err := OpenRoot(os.Getpid(), own, "boxgate-test-no-such-file"); !errors.Is(err, ErrElsewhere) {
		t.Errorf("a root without the marker: %v", err)
	}
	root, err := OpenRoot(os.Getpid(), own, "proc")
	if err != nil {
		t.Fatal(err)
	}
	root.Close()
	other := exec.Command("sleep", "600")
	other.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL, UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: user, Size: 1}}}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	pid := other.Process.Pid
	if _, err := OpenRoot(pid, own, "proc"); !errors.Is(err, os.ErrNotExist) || InUserNamespace(pid, own) || !InUserNamespace(os.Getpid(), own) {
		t.Errorf("a process of another user namespace: %v", err)
	}
	if err := errors.Join(other.Process.Kill()); err != nil {
		t.Error(err)
	}
	_ = other.Wait()
	if _, err := OpenRoot(pid, own, "proc"); err == nil || InUserNamespace(pid, own) {
		t.Error("the root of a process that is gone was opened")
	}
	if _, err := OpenRoot(os.Getpid(), "/nonexistent/pin", "proc"); !errors.Is(err, unix.ENOENT) {
		t.Error(err)
	}

	box := openDir(t, dir)
	for name, want := range map[string]bool{"marker": true, "link": true, "missing": true, "away": true, "dir": false, "/": false} {
		if got := IsFileOrMissing(box, name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestSessionsOfABoxTakeTurns: one session above the limit of a box waits, and sessions of other boxes do not.
func TestSessionsOfABoxTakeTurns(t *testing.T) {
	t.Parallel()
	var turns Limiter
	var ends []func()
	for range PerBox {
		done, err := turns.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, done)
	}
	over := errors.New("over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(over)
	if _, err := turns.Acquire(ctx, "a"); !errors.Is(err, over) {
		t.Errorf("a caller that has gone: %v", err)
	}
	var waits sync.WaitGroup
	waits.Go(func() {
		done, err := turns.Acquire(t.Context(), "a")
		if err != nil {
			t.Error(err)
			return
		}
		done()
	})
	done, err := turns.Acquire(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	done()
	ends[0]()
	waits.Wait()
	for _, end := range ends {
		end()
		end() // a second call has no effect
	}
	if len(turns.boxes) > 0 {
		t.Errorf("%d boxes are remembered", len(turns.boxes))
	}
}

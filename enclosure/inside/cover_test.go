package inside

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// enclosed runs f in a new mount namespace with a [Private] directory.
func enclosed(t *testing.T, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the namespace ends with the thread
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("tmpfs", "/run", "tmpfs", 0, "")
		}
		if err == nil {
			err = errors.Join(os.Mkdir(Private, 0o755), os.WriteFile(emptyFile, nil, 0))
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// socketIn makes a directory of a user with a socket in it.
func socketIn(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "s")
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		var ln net.Listener
		if ln, err = net.Listen("unix", path); err == nil {
			t.Cleanup(func() { _ = ln.Close() })
			err = errors.Join(os.Chown(dir, 47110, 47111), os.Chmod(dir, os.ModeSetgid|0o770))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func statOf(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Error(err)
	}
	return st
}

// TestAttackDirectoryOfSocketsIsExchanged: while a directory is being covered, its owner replaces it by a link to a
// directory of root's. That directory keeps its owner, mode and content: only the directory that was checked is covered, by
// one with the same owner.
func TestAttackDirectoryOfSocketsIsExchanged(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	base := t.TempDir()
	dir, moved, victim := filepath.Join(base, "d"), filepath.Join(base, "moved"), filepath.Join(base, "victim")
	path := socketIn(t, dir)
	if err := os.Mkdir(victim, 0o755); err != nil {
		t.Fatal(err)
	}
	before := statOf(t, victim)
	enclosed(t, func() error {
		h, err := openSocket(path)
		if err != nil {
			return err
		}
		defer h.close()
		if err := errors.Join(os.Rename(dir, moved), os.Symlink(victim, dir), h.cover()); err != nil {
			return err
		}
		if now := statOf(t, victim); now.Uid != before.Uid || now.Gid != before.Gid || now.Mode != before.Mode || now.Dev != before.Dev {
			t.Errorf("root's directory is another: %+v, was %+v", now, before)
		}
		if now := statOf(t, moved); now.Uid != 47110 || now.Gid != 47111 || now.Mode != unix.S_IFDIR|unix.S_ISGID|0o770 {
			t.Errorf("the cover is of %d:%d with mode %o", now.Uid, now.Gid, now.Mode)
		}
		if _, err := os.Lstat(filepath.Join(moved, "s")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is seen: %v", err)
		}
		return nil
	})
	if now := statOf(t, victim); now.Uid != before.Uid || now.Mode != before.Mode {
		t.Errorf("outside, root's directory is another: %+v, was %+v", now, before)
	}
}

// TestAttackSocketIsExchanged does the same with one socket beside files.
func TestAttackSocketIsExchanged(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	base := t.TempDir()
	path, victim := socketIn(t, filepath.Join(base, "d")), filepath.Join(base, "victim")
	err := errors.Join(os.WriteFile(victim, []byte("root's"), 0o600), os.WriteFile(filepath.Join(base, "d", "file"), nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	enclosed(t, func() error {
		h, err := openSocket(path)
		if err != nil {
			return err
		}
		defer h.close()
		if err := errors.Join(os.Rename(path, path+"-moved"), os.Symlink(victim, path), h.cover()); err != nil {
			return err
		}
		if content, err := os.ReadFile(victim); string(content) != "root's" {
			t.Errorf("root's file has %q (%v)", content, err)
		}
		if info, err := os.Lstat(path + "-moved"); err != nil || info.Mode() != 0 {
			t.Errorf("the socket is not covered: %v (%v)", info, err)
		}
		if err := hideSocket(Spec{}, path); err != nil { // it is a link now
			return err
		}
		if content, err := os.ReadFile(victim); string(content) != "root's" {
			t.Errorf("by the link, root's file has %q (%v)", content, err)
		}
		return nil
	})
}

// TestAttackSocketBehindALinkInACircle: the owner of a socket replaces its directory, or the socket, by a link to itself.
// Commands still run: no socket can be reached there.
func TestAttackSocketBehindALinkInACircle(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dir := filepath.Join(t.TempDir(), "d")
	path := socketIn(t, dir)
	for _, circle := range []string{path, dir} {
		if err := errors.Join(os.RemoveAll(circle), os.Symlink(circle, circle)); err != nil {
			t.Fatal(err)
		}
		for _, uid := range []int{0, 47110, 47111} {
			enclosed(t, func() error { return hideSocket(Spec{UID: uid, GID: uid}, path) })
		}
	}
}

// TestAttackQueueOfTheHost: mounts of message queues show the queues of the command's namespace, not those of the host.
func TestAttackQueueOfTheHost(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dir := t.TempDir()
	enclosed(t, func() error {
		queue := filepath.Join(dir, fmt.Sprintf("boxgate-test-%d", os.Getpid()))
		if err := errors.Join(unix.Mount("mqueue", dir, "mqueue", 0, ""), unix.Mknod(queue, unix.S_IFREG|0o600, 0)); err != nil {
			return err
		}
		host, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer host.Close()
		defer func() { _ = unix.Unlinkat(int(host.Fd()), filepath.Base(queue), 0) }()
		if err := errors.Join(unix.Unshare(unix.CLONE_NEWIPC), hideQueues()); err != nil {
			return err
		}
		if _, err := os.Lstat(queue); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the queue is seen: %v", err)
		}
		return unix.Mknod(queue, unix.S_IFREG|0o600, 0)
	})
}

// TestAttackSocketWhereRootMayNotLook: a file system of a user refuses root. A socket there is not taken for a missing one,
// unless the command's user is refused as well.
func TestAttackSocketWhereRootMayNotLook(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	base := t.TempDir()
	dir := filepath.Join(base, "fuse\x1b[2J")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(filepath.Dir(base), 0o755)); err != nil {
		t.Fatal(err)
	}
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = unix.Mount("test", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=47110,group_id=47110", device.Fd()))
	if err := errors.Join(err, device.Close()); err != nil { // no server answers: its user gets an error
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path := filepath.Join(dir, "s")
	for uid, reachable := range map[int]bool{0: true, 47110: true, 47111: false} {
		err := hideSocket(Spec{UID: uid, GID: uid, Groups: []int{uid}}, path)
		if reachable != (err != nil) {
			t.Errorf("user %d: %v", uid, err)
		}
		if err != nil && (strings.Contains(err.Error(), "\x1b") || !strings.Contains(err.Error(), `fuse\x1b`)) {
			t.Errorf("user %d: %q does not name it, or as it is", uid, err)
		}
	}
	if unix.Getuid() != 0 || unix.Geteuid() != 0 {
		t.Error("this process is another user's")
	}
	if err := hideSocket(Spec{UID: 47110, GID: 47110}, filepath.Join(base, "gone", "s")); err != nil {
		t.Error(err)
	}
}

// TestAttackDeviceByAnotherMount: a hidden device is hidden in every mount that shows it.
func TestAttackDeviceByAnotherMount(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	other := t.TempDir()
	enclosed(t, func() error {
		device := filepath.Join(other, "kept")
		err := errors.Join(
			unix.Mount("devices", other, "tmpfs", 0, ""), unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))),
			os.Mkdir(filepath.Join(other, "view"), 0o755), os.WriteFile("/run/device", nil, 0o644), unix.Mount(device, "/run/device", "", unix.MS_BIND, ""))
		if err != nil {
			return err
		}
		defer unix.Unmount(other, unix.MNT_DETACH)
		if err := hideDevices([]string{"/run/device", "/run/none"}); err != nil {
			return err
		}
		for _, path := range []string{"/run/device", device} {
			if st := statOf(t, path); st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != 0 {
				t.Errorf("%s can be opened", path)
			}
		}
		return nil
	})
}

package rootfs

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
	"boxgate/launcher/namespace"
)

// A process in a root replaces a file by a pipe while it is opened: opening does not block.
func TestAttackFileExchangedForAPipe(t *testing.T) {
	t.Parallel()
	at := t.TempDir()
	file, pipe := filepath.Join(at, "file"), filepath.Join(at, "pipe")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := Open(at, namespace.IDsAt(7))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, pipe, unix.RENAME_EXCHANGE)
			}
		}
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2000 {
			_, _ = root.readAt("file")
			_ = root.writeAt("file", []byte("x"), 0o644)
		}
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("it waits for the other end of a pipe")
		if f, err := os.OpenFile(pipe, os.O_RDWR|unix.O_NONBLOCK, 0); err == nil {
			defer f.Close()
		}
	}
}

// A pipe or a device in place of a file is replaced, and never opened.
func TestReplacePipeAndDevice(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	at := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(at, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(at, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 7))); err != nil {
		t.Fatal(err)
	}
	root, err := Open(at, namespace.IDsAt(7))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, name := range []string{"pipe", "device"} {
		if _, err := root.readAt(name); err == nil {
			t.Errorf("the %s was read", name)
		}
		if err := root.writeAt(name, []byte("x"), 0o644); err == nil {
			t.Errorf("the %s was written", name)
		}
		if err := root.Replace("/"+name, []byte("x"), 0o644); err != nil {
			t.Error(err)
		}
		if data, err := os.ReadFile(filepath.Join(at, name)); err != nil || string(data) != "x" {
			t.Errorf("in place of the %s: %q %v", name, data, err)
		}
	}
}

package sandboxns

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A path to attach is opened only after it was found to be a network namespace: opening a device can have side effects,
// such as arming a watchdog, and the owner of any directory on the path can place one there.
func TestAttackAttachedPathIsNotOpened(t *testing.T) {
	t.Parallel()
	trap := filepath.Join(t.TempDir(), "trap")
	if err := os.WriteFile(trap, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, trap, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	if f, err := openNetNS(trap); err == nil {
		f.Close()
		t.Error("a file was accepted as a network namespace")
	}
	if n, err := unix.Read(watch, make([]byte, 4096)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("it was opened: %d %v", n, err)
	}
	f, err := openNetNS("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

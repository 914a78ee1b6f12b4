package sandboxns

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/api"
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
	if f, err := OpenNetNS(trap); err == nil {
		f.Close()
		t.Error("a file was accepted as a network namespace")
	}
	if n, err := unix.Read(watch, make([]byte, 4096)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("it was opened: %d %v", n, err)
	}
	f, err := OpenNetNS("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// TestMissingSandboxesAreNamed: the errors for sandboxes that do not exist name the file, the process and Docker's socket, without the
// names of system calls.
func TestMissingSandboxesAreNamed(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	t.Setenv("DOCKER_HOST", "unix://"+missing)
	for want, a := range map[string]api.Attached{
		"there is no file " + missing + ";":                            {Kind: api.AttachNetNS, Ref: missing},
		"there is no process 4194305 in":                               {Kind: api.AttachPID, PID: 1<<22 + 1},
		"no answer from Docker at " + missing + ": is it running? (no": {Kind: api.AttachDocker, Ref: "guest"},
	} {
		found, err := Open(t.Context(), a, func(string) error { return nil })
		if err == nil {
			found.NS.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "open /") || strings.Contains(err.Error(), "dial") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

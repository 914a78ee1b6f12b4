package solo

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// stateMount is where the state of this gateway is: in memory, in a mount namespace of this process, where no other process sees
// it. The directory itself is empty for everybody else, and the same for all commands that run at a time.
const stateMount = "/run/boxgate-run"

// Stage begins the program anew, with the given arguments, in a mount namespace of its own that has the state directory. It
// returns only on failure. A namespace of mounts cannot be changed once a process has threads.
func Stage(args []string) error {
	if err := os.MkdirAll(stateMount, 0o700); err != nil {
		return err
	}
	runtime.LockOSThread() // which the new program begins in
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("boxgate", stateMount, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mounting %s: %w", stateMount, err)
	}
	return unix.Exec("/proc/self/exe", args, os.Environ())
}

// needStage requires that this process was begun by [Stage]: elsewhere the state would be on disk, and stay there.
func needStage() error {
	var at, above unix.Stat_t
	err := errors.Join(unix.Stat(stateMount, &at), unix.Stat("/run", &above))
	if err != nil || at.Dev == above.Dev {
		return errors.New("this is started by `gateway run`")
	}
	entries, err := os.ReadDir(stateMount)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s is in use", stateMount)
	}
	return err
}

package solo

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// stateMount is the directory of the temporary gateway's state: a tmpfs in the mount namespace of this process. Other
// processes see an empty directory, and concurrent commands can share the path.
const stateMount = "/run/boxgate-run"

// Stage restarts the program with the given arguments in a new mount namespace with the state directory. It returns only
// on failure. The restart is needed because a process with threads cannot change its mount namespace.
func Stage(args []string) error {
	if err := os.MkdirAll(stateMount, 0o700); err != nil {
		return err
	}
	runtime.LockOSThread() // the new program starts in the namespace of this thread
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

// needStage requires that this process was started by [Stage]; otherwise the state would be written to disk and stay
// there.
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

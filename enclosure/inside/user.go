package inside

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// asUser runs f on a thread that is the command's user in every respect (FUSE looks at more than the IDs for files), without any
// capability.
func asUser(s Spec, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() { // on another: it is the first thread that is killed with the process outside, until its user changes
			defer runtime.UnlockOSThread()
			done <- asUser(s, f)
			return
		}
		err := become(s) // and never unlocked: the thread ends with its identity
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// become makes the calling thread, and no other, the user's. The package's own calls change every thread.
func become(s Spec) error {
	ids, uid, gid := groups(s.Groups), uintptr(s.UID), uintptr(s.GID)
	_, _, noGroups := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(ids)), uintptr(unsafe.Pointer(unsafe.SliceData(ids))), 0)
	_, _, noGroup := unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid)
	_, _, noUser := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid)
	if noGroups|noGroup|noUser != 0 {
		return fmt.Errorf("looking as user %d failed: %w", s.UID, errors.Join(errno(noGroups), errno(noGroup), errno(noUser)))
	}
	return nil
}

// errno is nil for 0.
func errno(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

package inside

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// asUser runs f on a thread that has the command's user in every respect (FUSE checks more than the file system IDs),
// without capabilities.
func asUser(s Spec, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() { // switch threads: the parent-death signal of the first thread is lost when its user changes
			defer runtime.UnlockOSThread()
			done <- asUser(s, f)
			return
		}
		err := become(s) // never unlocked: the thread ends with its identity
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// become switches only the calling thread to the user. The functions of package unix change all threads.
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

// errno converts 0 to nil.
func errno(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

package namespace

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"
)

// asUser runs f on this thread with another effective user ID. The thread keeps its capabilities, and root's access to
// files. If it cannot become root again, it stays locked and ends with its goroutine, so that no other goroutine runs on
// it.
func asUser(uid int, f func() error) error {
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // of the calling thread
	var before, during [2]unix.CapUserData
	if err := unix.Capget(&header, &before[0]); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	during = before
	for i := range during {
		during[i].Effective = during[i].Permitted // changing the user ID clears Effective
	}
	err := setEffectiveUser(uid)
	if err == nil {
		err = unix.Capset(&header, &during[0])
	}
	if err == nil {
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, 0, 0, 0) // does not return errors
		err = f()
	}
	if back := errors.Join(setEffectiveUser(0), unix.Capset(&header, &before[0])); back != nil {
		return errors.Join(err, back)
	}
	runtime.UnlockOSThread()
	return err
}

// setEffectiveUser is seteuid(2) for the calling thread only; package syscall changes the whole process.
func setEffectiveUser(uid int) error {
	const keep = ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); e != 0 {
		return e
	}
	return nil
}

package inside

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// keptCapabilities are the capabilities of a command that runs as root: they concern files and users, but not the network, processes of
// others, devices or the kernel. Other users have no capabilities.
var keptCapabilities = map[int]bool{
	unix.CAP_CHOWN: true, unix.CAP_DAC_OVERRIDE: true, unix.CAP_FOWNER: true, unix.CAP_FSETID: true, unix.CAP_KILL: true,
	unix.CAP_SETGID: true, unix.CAP_SETUID: true, unix.CAP_NET_BIND_SERVICE: true,
}

// confine removes privileges of the calling thread. The remaining capabilities are needed to switch to the command's user,
// and disappear with that, or at the latest with execve. listener notifies of the command's calls of connect(2).
func confine(uid int) (listener int, err error) {
	for c := range unix.CAP_LAST_CAP + 1 {
		if uid == 0 && keptCapabilities[c] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL { // EINVAL: unknown to this kernel
			return 0, fmt.Errorf("dropping capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("dropping ambient capabilities: %w", err)
	}
	if err := dropInheritable(); err != nil {
		return 0, fmt.Errorf("dropping inheritable capabilities: %w", err)
	}
	// Otherwise sudo and other setuid programs would restore privileges.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("no_new_privs: %w", err)
	}
	return filterCalls()
}

func dropInheritable() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&head, &sets[0]); err != nil {
		return err
	}
	sets[0].Inheritable, sets[1].Inheritable = 0, 0
	return unix.Capset(&head, &sets[0])
}

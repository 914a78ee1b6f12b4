package enter

import (
	"fmt"
	"slices"
)

// capabilityNames are the names in the runtime's configuration, ordered by number (capabilities(7)).
var capabilityNames = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
	"CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE",
	"CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME",
	"CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL", "CAP_SETFCAP",
}

// capabilitySet returns the bits of capabilities. Later ones than CAP_SETFCAP are not given to boxes.
func capabilitySet(names []string) (set uint64, err error) {
	for _, name := range names {
		n := slices.Index(capabilityNames, name)
		if n < 0 {
			return 0, fmt.Errorf("capability %q is not supported", name)
		}
		set |= 1 << n
	}
	return set, nil
}

// needed are the capabilities of the box's root without which it could not become another user. A bounding set that lacks one
// is not supported.
var needed = []string{"CAP_CHOWN", "CAP_SETGID", "CAP_SETUID"}

// capabilities returns the bounding set, and the effective and permitted set of the command.
func (c Command) capabilities() (bounding, own uint64, err error) {
	caps := c.Process.Capabilities
	if caps == nil || len(caps.Inheritable)+len(caps.Ambient) > 0 || !slices.Equal(caps.Effective, caps.Permitted) {
		return 0, 0, fmt.Errorf("capabilities %+v are not supported", caps)
	}
	for _, name := range needed {
		if !slices.Contains(caps.Bounding, name) {
			return 0, 0, fmt.Errorf("a bounding set without %s is not supported", name)
		}
	}
	if bounding, err = capabilitySet(caps.Bounding); err != nil {
		return 0, 0, err
	}
	own, err = capabilitySet(caps.Permitted)
	if err == nil && own&^bounding != 0 {
		err = fmt.Errorf("capabilities %v exceed the bounding set", caps.Permitted)
	}
	return bounding, own, err
}

package inside

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// setUpFiles sets up the command's view of the file system, in the mount namespace of this process.
func setUpFiles(s Spec) error {
	files, err := resolveFiles(s)
	if err != nil {
		return err
	}
	if s.State != "" {
		if err := unix.Unmount(s.State, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("letting go of %s: %w", s.State, err)
		}
	}
	if err := hideOtherProcesses(); err != nil {
		return err
	}
	if err := hideQueues(); err != nil {
		return err
	}
	if err := hideRun(s); err != nil {
		return fmt.Errorf("/run: %w", err)
	}
	for i, f := range files {
		if err := showFile(f, i); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	for _, path := range s.Sockets {
		if err := hideSocket(s, path); err != nil {
			return err
		}
	}
	if err := hideDevices(hiddenDevices); err != nil {
		return err
	}
	for _, path := range s.Hidden {
		if err := hideEverywhere(path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// hideDevices covers devices in every mount that shows them, such as one for a chroot.
func hideDevices(paths []string) error {
	for _, path := range paths {
		if err := hideEverywhere(path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// hiddenDevices allow users with access to them (root, and members of groups such as kvm) to bypass the filter of system
// calls. A virtual machine's end of vsock reaches the host's, a virtual keyboard types into the host's terminals, and
// userfaultfd has a device too.
var hiddenDevices = []string{"/dev/vhost-vsock", "/dev/uinput", "/dev/uhid", "/dev/userfaultfd"}

// resolveFiles resolves symbolic links before any of the host's files are hidden, and drops files that the host lacks.
func resolveFiles(s Spec) ([]File, error) {
	var out []File
	seen := map[string]bool{}
	for _, f := range s.Files {
		path, err := filepath.EvalSymlinks(f.Path)
		switch {
		case f.Always:
			path = f.Path
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return nil, err
		}
		if !seen[path] {
			out = append(out, File{Path: path, Content: f.Content})
		}
		seen[path] = true
	}
	return out, nil
}

// hideOtherProcesses replaces /proc, and covers every other mount of that type: through them the command could change other
// processes of its user. Files that let root change the kernel become read-only.
func hideOtherProcesses() error {
	others, err := mountsOf("proc")
	if err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	for _, at := range others {
		if at == "/proc" || strings.HasPrefix(at, "/proc/") {
			continue
		}
		if err := hide(at); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	for _, path := range []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"} {
		if err := makeReadOnly(path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/sys", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("/sys: %w", err)
	}
	return nil
}

// hideQueues replaces every mount of the host's POSIX message queues by the queues of the command's own namespace.
func hideQueues() error {
	views, err := mountsOf("mqueue")
	for _, at := range views {
		if err = errors.Join(err, unix.Mount("mqueue", at, "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	return err
}

// makeReadOnly makes a file or directory read-only. A missing one is not an error.
func makeReadOnly(path string) error {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// mountsOf returns the mount points of a type of file system.
func mountsOf(kind string) ([]string, error) {
	all, err := mounts()
	var out []string
	for _, m := range all {
		if m.kind == kind {
			out = append(out, m.at)
		}
	}
	return out, err
}

// unescape decodes the octal escapes of mountinfo.
func unescape(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '\\' && i+3 < len(path) {
			if c, err := strconv.ParseUint(path[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(path[i])
	}
	return b.String()
}

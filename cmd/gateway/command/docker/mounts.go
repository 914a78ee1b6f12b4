package docker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"boxgate/enclosure/inside"
)

// Docker's bind mounts are recursive (MS_REC): they include the mounts below the source. A source is therefore checked
// together with all mounts below it, at any depth.

// kernelMagic lists file systems that expose the kernel's state or settings, or processes of the host, by their magic
// number in statfs(2).
var kernelMagic = map[int64]string{
	unix.PROC_SUPER_MAGIC: "proc", unix.SYSFS_MAGIC: "sysfs", unix.CGROUP_SUPER_MAGIC: "cgroup", unix.CGROUP2_SUPER_MAGIC: "cgroup2",
	unix.DEBUGFS_MAGIC: "debugfs", unix.TRACEFS_MAGIC: "tracefs", unix.SECURITYFS_MAGIC: "securityfs", unix.BPF_FS_MAGIC: "bpf",
	unix.EFIVARFS_MAGIC: "efivarfs", configfsMagic: "configfs", unix.NSFS_MAGIC: "nsfs", unix.DEVPTS_SUPER_MAGIC: "devpts", unix.SELINUX_MAGIC: "selinuxfs",
	unix.BINFMTFS_MAGIC: "binfmt_misc", unix.PSTOREFS_MAGIC: "pstore", unix.RDTGROUP_SUPER_MAGIC: "resctrl", unix.XENFS_SUPER_MAGIC: "xenfs",
	mqueueMagic: "mqueue", fusectlMagic: "fusectl", nfsdMagic: "nfsd", smackMagic: "smackfs", unix.AAFS_MAGIC: "apparmorfs",
}

const (
	configfsMagic = 0x62656570
	mqueueMagic   = 0x19800202
	fusectlMagic  = 0x65735543
	nfsdMagic     = 0x6e667364
	smackMagic    = 0x43415d53
)

// kernelTypes are the types of these file systems in mountinfo, and devtmpfs, which has the magic number of tmpfs.
var kernelTypes = func() map[string]bool {
	out := words("devtmpfs")
	for _, kind := range kernelMagic {
		out["--"+kind] = true
	}
	return out
}()

// checkSource checks a file or directory of the host that a container mounts.
func checkSource(source string) error {
	source, err := filepath.Abs(source)
	if err != nil {
		return err
	}
	at := resolved(source)
	if at == "/dev" || strings.HasPrefix(at, "/dev/") {
		return errors.New("devices of the host are not volumes: use --device for one that is allowed")
	}
	for _, dir := range []string{"/proc", "/sys"} {
		if at == dir || strings.HasPrefix(at, dir+"/") {
			return fmt.Errorf("the container could change the host's kernel by %s", dir)
		}
	}
	below, err := mountsBelow(at)
	if err != nil {
		return err
	}
	for _, m := range below {
		if kernelTypes["--"+m.Kind] {
			return fmt.Errorf("the container could change the host's kernel by the file system of type %s at %s: unmount that, or name a directory without it", m.Kind, m.At)
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return nil //nolint:nilerr // Docker creates a missing directory, or reports it
	}
	if kind := kernelMagic[int64(st.Type)]; kind != "" {
		return fmt.Errorf("the container could change the host's kernel by a file system of type %s", kind)
	}
	return nil
}

// mountsBelow returns the mounts at and below a path, in the mount namespaces of this process and of the host's first
// process. Docker's daemon is assumed to use one of them.
func mountsBelow(path string) ([]inside.MountPoint, error) {
	var out []inside.MountPoint
	for _, view := range []string{"/proc/thread-self/mountinfo", "/proc/1/mountinfo"} {
		all, err := inside.MountPoints(view)
		if mayNotLook(view, err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("the mounts below %s cannot be listed: %w", path, err)
		}
		for _, m := range all {
			if (m.At == path || path == "/" || strings.HasPrefix(m.At, path+"/")) && !slices.Contains(out, m) {
				out = append(out, m)
			}
		}
	}
	return out, nil
}

// refuseExchangeable refuses volumes whose source the container could replace through another volume, for example by a
// link to a socket: Docker resolves sources again whenever it starts the container.
func (c container) refuseExchangeable() error {
	for _, m := range c.Mounts {
		if m.Source == "" {
			continue
		}
		dirs, err := lookupDirs(m.Source)
		if err != nil {
			return fmt.Errorf("the volume %s: %w", m.Source, err)
		}
		for _, writable := range c.Mounts {
			if writable.RW && writable.Source != "" && slices.ContainsFunc(dirs, func(dir string) bool { return isSame(dir, resolved(writable.Source)) }) {
				return fmt.Errorf("the container could exchange the volume %s by the volume %s, for any directory of the host once it is started again: make that one read-only (:ro), or leave one out",
					m.Source, writable.Source)
			}
		}
	}
	return nil
}

// isSame reports whether two paths refer to the same directory.
func isSame(a, b string) bool {
	if a == b {
		return true
	}
	first, err := os.Stat(a)
	if err != nil {
		return false
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}

// maxLinks is the number of links that the kernel follows in a path (MAXSYMLINKS).
const maxLinks = 40

// lookupDirs returns the resolved directories in which the kernel looks up the components of an absolute path, including
// the components of its links. Write access to any of them determines where the path leads.
func lookupDirs(path string) (dirs []string, err error) {
	at, rest := "/", strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		dirs = append(dirs, at)
		to, err := os.Readlink(filepath.Join(at, part))
		if err != nil { // not a link, or missing
			at = filepath.Join(at, part)
			continue
		}
		if links++; links > maxLinks {
			return nil, errors.New("it has too many links")
		}
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	return dirs, nil
}

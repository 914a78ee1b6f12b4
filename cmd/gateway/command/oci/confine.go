package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"boxgate/cmd/gateway/command/docker"
)

// refuse returns why the gateway could not confine a container. sockets are the gateway's own sockets and files.
func (b *bundle) refuse(sockets ...string) error {
	l := b.spec.Linux
	for _, err := range []error{b.refuseNamespaces(), b.refuseCapabilities(), b.refuseDevices(), b.refuseRoot()} {
		if err != nil {
			return err
		}
	}
	if len(l.NetDevices) > 0 {
		return errors.New("a container with a network device of the host can leave the gateway: it has linux.netDevices")
	}
	if len(l.MaskedPaths) == 0 {
		return errors.New("the container could change the host's kernel: it has no linux.maskedPaths, as with --privileged and systempaths=unconfined")
	}
	for _, path := range kernelFiles {
		if !slices.Contains(l.ReadonlyPaths, path) && !slices.Contains(l.MaskedPaths, path) {
			return fmt.Errorf("the container could change the host's kernel: linux.readonlyPaths has no %s, as with systempaths=unconfined and unmask", path)
		}
	}
	for _, m := range b.spec.Mounts {
		if slices.Contains(m.Options, "remount") {
			return fmt.Errorf("the mount at %.200q changes another one, by the option remount", m.Destination)
		}
		switch {
		case isBind(m):
			if err := docker.CheckBind(m.Source, m.Options, sockets...); err != nil {
				return err
			}
		case !slices.Contains(ownFileSystems, m.Type):
			return fmt.Errorf("the mount at %.200q: a file system of type %.50q can be a disk or another host", m.Destination, m.Type)
		case !harmlessKernelMount(m):
			return fmt.Errorf("the mount at %.200q: with another %.50q than that of each container, the container could change the host's kernel", m.Destination, m.Type)
		}
	}
	return nil
}

// kernelFiles are below /proc, and change the kernel for root without capabilities.
var kernelFiles = []string{"/proc/sys", "/proc/sysrq-trigger"}

// harmlessKernelMount reports whether a mount is not of the kernel's files, or where the runtime hides the dangerous ones, or read-only.
func harmlessKernelMount(m specs.Mount) bool {
	switch m.Type {
	case "proc":
		return filepath.Clean(m.Destination) == "/proc"
	case "sysfs":
		return isReadOnly(m)
	case "cgroup", "cgroup2":
		var st unix.Statfs_t // version 1 has programs that the kernel starts on the host
		return isReadOnly(m) || unix.Statfs("/sys/fs/cgroup", &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
	}
	return true
}

// isReadOnly reports whether a mount is read-only. Of contradicting options the last one applies.
func isReadOnly(m specs.Mount) (is bool) {
	for _, option := range m.Options {
		if option == "ro" || option == "rw" {
			is = option == "ro"
		}
	}
	return is
}

// ownFileSystems are the types of file systems without files of the host.
var ownFileSystems = strings.Fields("proc sysfs tmpfs devpts mqueue cgroup cgroup2")

// refuseNamespaces refuses a container that could bypass the gateway through a namespace shared with the host.
func (b *bundle) refuseNamespaces() error {
	for kind, file := range map[specs.LinuxNamespaceType]string{
		specs.NetworkNamespace: "net", specs.PIDNamespace: "pid", specs.IPCNamespace: "ipc", specs.MountNamespace: "mnt", specs.UTSNamespace: "uts",
	} {
		found := 0
		for _, ns := range b.spec.Linux.Namespaces {
			if ns.Type != kind {
				continue
			}
			found++
			if ns.Path == "" {
				continue
			}
			if kind == specs.MountNamespace {
				return errors.New("a container in the mount namespace of another one has files that were not checked")
			}
			same, err := isSame(ns.Path, "/proc/self/ns/"+file, "/proc/1/ns/"+file)
			if err != nil {
				return fmt.Errorf("the %s namespace of the container: %w", kind, err)
			}
			if same {
				found = 0
			}
		}
		if found != 1 {
			return fmt.Errorf("a container in the %s namespace of the host can leave the gateway: give it one of its own (as without --%s host)", kind, kind)
		}
	}
	if len(b.spec.Linux.UIDMappings) > 0 || slices.ContainsFunc(b.spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.UserNamespace }) {
		return errors.New("gateway oci cannot attach a container with a user namespace: start it without one (as with --userns host)")
	}
	return nil
}

// refuseShared refuses processes and memory of containers that are not behind the gateway: a container could act through them. owner is
// the container whose network it joins, nil if it has a box of its own. The runtime gets the namespaces that were judged.
func (b *bundle) refuseShared(ctx context.Context, owner *record, held *holder) error {
	for i, ns := range b.spec.Linux.Namespaces {
		file := map[specs.LinuxNamespaceType]string{specs.PIDNamespace: "pid", specs.IPCNamespace: "ipc"}[ns.Type]
		if file == "" || ns.Path == "" {
			continue
		}
		open, err := os.OpenFile(ns.Path, unix.O_PATH, 0)
		if err != nil {
			return fmt.Errorf("the %s namespace of the container: %w", ns.Type, err)
		}
		b.spec.Linux.Namespaces[i].Path = held.keep(open)
		id, err := identity(b.spec.Linux.Namespaces[i].Path)
		if err != nil {
			return err
		}
		shared := false
		if owner != nil {
			if shared, err = owner.shares(ctx, file, id); err != nil {
				return err
			}
		}
		if !shared {
			return fmt.Errorf("a container in the %s namespace of another one, whose box it does not share, can leave the gateway: let it join the network of that one, which gateway oci has started, too", ns.Type)
		}
	}
	return nil
}

// isSame reports whether a path refers to the same file as one of others, which are left out where this process may not look.
func isSame(path string, others ...string) (bool, error) {
	of, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	for _, other := range others {
		info, err := os.Stat(other)
		if err != nil && !os.IsPermission(err) {
			return false, err
		}
		if err == nil && os.SameFile(of, info) {
			return true, nil
		}
	}
	return false, nil
}

func (b *bundle) refuseCapabilities() error {
	if c := b.spec.Process.Capabilities; c != nil {
		for _, name := range slices.Concat(c.Bounding, c.Effective, c.Inheritable, c.Permitted, c.Ambient) {
			if err := docker.CheckCapability(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// harmlessDevices are the devices, as major and minor number, that each container has, and Docker's and runc's tunnel, which needs
// CAP_NET_ADMIN.
var harmlessDevices = map[[2]int64]bool{{1, 3}: true, {1, 5}: true, {1, 7}: true, {1, 8}: true, {1, 9}: true, {5, 0}: true, {5, 1}: true, {5, 2}: true, {10, 200}: true}

// refuseDevices refuses devices that are not known to be harmless, whether the container has them or may make them.
func (b *bundle) refuseDevices() error {
	given := map[string]bool{}
	for _, d := range b.spec.Linux.Devices {
		given[fmt.Sprint(d.Type, d.Major, d.Minor)] = true
		if d.Type == "p" || d.Type == "c" && harmlessDevices[[2]int64{d.Major, d.Minor}] {
			continue
		}
		if err := docker.CheckDevice(d.Path); err != nil {
			return err
		}
		var st unix.Stat_t // the path is that in the container, and could have any numbers
		if err := unix.Stat(d.Path, &st); err != nil || int64(unix.Major(st.Rdev)) != d.Major || int64(unix.Minor(st.Rdev)) != d.Minor {
			return fmt.Errorf("the device %.200q is not the one of that name of this host", d.Path)
		}
	}
	if b.spec.Linux.Resources == nil {
		return nil
	}
	for _, r := range b.spec.Linux.Resources.Devices {
		const terminals = 136 // major number of /dev/pts
		major, minor := int64(-1), int64(-1)
		if r.Major != nil {
			major = *r.Major
		}
		if r.Minor != nil {
			minor = *r.Minor
		}
		switch {
		case !r.Allow, r.Access == "m", r.Type == "c" && (major == terminals || harmlessDevices[[2]int64{major, minor}]), given[fmt.Sprint(r.Type, major, minor)]:
		default:
			return fmt.Errorf("a container that makes devices can leave the gateway: linux.resources.devices allows %.20q %d:%d, as with --privileged", r.Type, major, minor)
		}
	}
	return nil
}

// refuseRoot refuses the host's own files.
func (b *bundle) refuseRoot() error {
	root := b.spec.Root.Path
	if !filepath.IsAbs(root) {
		root = filepath.Join(b.dir, root)
	}
	same, err := isSame(root, "/", "/proc/1/root")
	if err == nil && same {
		err = errors.New("it has the files of this host")
	}
	if err != nil {
		return fmt.Errorf("the container's root: %w", err)
	}
	return nil
}

package oci

import (
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
	for _, m := range b.spec.Mounts {
		switch {
		case isBind(m):
			if err := docker.CheckBind(m.Source, m.Options, sockets...); err != nil {
				return err
			}
		case !slices.Contains(ownFileSystems, m.Type):
			return fmt.Errorf("the mount at %.200q: a file system of type %.50q can be a disk or another host", m.Destination, m.Type)
		}
	}
	return nil
}

// ownFileSystems are the types of file systems without files of the host.
var ownFileSystems = strings.Fields("proc sysfs tmpfs devpts mqueue cgroup cgroup2")

// refuseNamespaces requires namespaces of its own where those of the host lead past the gateway.
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

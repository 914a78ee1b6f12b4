package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"boxgate/enclosure/inside"
	"boxgate/launcher/oci"
)

// check returns why the gateway could not confine a container with its volumes. sockets are the gateway's own.
func (c container) check(ctx context.Context, sockets ...string) error {
	if err := c.refuse(sockets...); err != nil {
		return err
	}
	for _, m := range c.Mounts {
		if m.Type != "volume" {
			continue
		}
		v, err := inspect[volume](ctx, "volume", m.Name)
		if err == nil {
			err = v.refuse(sockets...)
		}
		if err != nil {
			return fmt.Errorf("the volume %s: %w", m.Name, err)
		}
	}
	return nil
}

// volume is the output of `docker volume inspect`.
type volume struct {
	Driver  string
	Options map[string]string // options of mount(8): type, device and o
}

// refuse returns why a container with the volume could not be confined. A volume may be backed by any directory or file
// system.
func (v volume) refuse(sockets ...string) error {
	device, options := v.Options["device"], strings.Split(v.Options["o"], ",")
	switch {
	case v.Driver != "local":
		return fmt.Errorf("the driver %q may reach other hosts past the gateway: use one of the driver local", v.Driver)
	case device == "":
		return nil
	case slices.Contains(options, "bind") || slices.Contains(options, "rbind"): // for any type, as in mount(2)
	case v.Options["type"] == "tmpfs":
		return nil
	default:
		return errors.New("it is a disk, or a file system of another host past the gateway: use a volume without the option device")
	}
	if !filepath.IsAbs(device) || slices.Contains(strings.Split(device, "/"), "..") { // Docker would resolve it relative to its own directory
		return fmt.Errorf("its option device is %q: use a volume with an absolute path without ..", device)
	}
	if err := checkSource(device); err != nil {
		return err
	}
	if socket := exposedSocket(device, append(controlSockets(), sockets...)); socket != "" {
		return fmt.Errorf("a container that reaches %s can leave the gateway: use another volume", socket)
	}
	return nil
}

// refuse returns why the gateway could not confine a container. sockets are the gateway's own.
func (c container) refuse(sockets ...string) error {
	switch {
	case c.HostConfig.Privileged:
		return errors.New("a privileged container can leave the gateway: start it without --privileged")
	case c.HostConfig.PidMode != "" && c.HostConfig.PidMode != "private":
		return fmt.Errorf("a container that sees the processes of others can leave the gateway: start it without --pid %s", c.HostConfig.PidMode)
	case len(c.HostConfig.DeviceCgroupRules) > 0:
		return errors.New("a container that makes devices can leave the gateway: start it without --device-cgroup-rule")
	case oci.ByName(c.HostConfig.Runtime).OwnNetwork:
		return fmt.Errorf("%s needs its network before it starts: see docs/attach.md", oci.ByName(c.HostConfig.Runtime).Title)
	case c.HostConfig.IpcMode == "host" || strings.HasPrefix(c.HostConfig.IpcMode, "container:"):
		return fmt.Errorf("a container that shares memory with others can have them pass the gateway: start it without --ipc %s", c.HostConfig.IpcMode)
	case c.HostConfig.UTSMode == "host":
		return errors.New("the container could rename the host: start it without --uts host")
	case c.HostConfig.UsernsMode == "host":
		return errors.New("the container would be the host's root: start it without --userns host")
	case c.HostConfig.MaskedPaths != nil && len(c.HostConfig.MaskedPaths) == 0:
		return errors.New("the container could change the host's kernel: start it without --security-opt systempaths=unconfined")
	}
	if err := c.refuseOptions(); err != nil {
		return err
	}
	for _, m := range c.Mounts {
		if m.Type == "bind" || m.Type == "volume" && m.Source != "" {
			if err := errors.Join(checkSource(m.Source), checkPropagation(m.Propagation)); err != nil {
				return fmt.Errorf("%w: start it without the volume %s", err, m.Source)
			}
		}
		if socket := exposedSocket(m.Source, append(controlSockets(), sockets...)); socket != "" {
			return fmt.Errorf("a container that reaches %s can leave the gateway: start it without the volume %s", socket, m.Source)
		}
	}
	return c.refuseExchangeable()
}

// refuseOptions checks the options of a container that come from repeatable flags.
func (c container) refuseOptions() error {
	for _, capability := range c.HostConfig.CapAdd {
		if err := checkCapability(capability); err != nil {
			return fmt.Errorf("--cap-add %s: %w", capability, err)
		}
	}
	for _, option := range c.HostConfig.SecurityOpt {
		if err := checkSecurity(option); err != nil {
			return fmt.Errorf("--security-opt %s: %w", option, err)
		}
	}
	var devices []string
	for _, d := range c.HostConfig.Devices {
		devices = append(devices, d.PathOnHost)
	}
	for _, r := range c.HostConfig.DeviceRequests {
		if r.Driver == "cdi" {
			devices = append(devices, r.DeviceIDs...)
		}
	}
	for _, d := range devices {
		if err := checkDevice(d); err != nil {
			return fmt.Errorf("--device %s: %w", d, err)
		}
	}
	return nil
}

// controlSockets lists the sockets of daemons that start containers and services on this host, whether they exist or not.
func controlSockets() []string {
	all := []string{
		"/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/docker/containerd/containerd.sock",
		"/run/podman/podman.sock", "/run/crio/crio.sock", "/run/dbus/system_bus_socket", "/run/systemd/private",
		"/run/buildkit/buildkitd.sock", "/run/k3s/containerd/containerd.sock", "/run/libvirt/libvirt-sock", "/run/snapd.socket",
		"/var/lib/lxd/unix.socket", "/var/snap/lxd/common/lxd/unix.socket", "/var/lib/incus/unix.socket", "/run/incus/unix.socket",
	}
	for _, pattern := range []string{"/run/user/*/docker.sock", "/run/user/*/podman/podman.sock", "/run/user/*/containerd/containerd.sock", "/run/user/*/bus", "/run/user/*/systemd/private"} {
		users, _ := filepath.Glob(pattern)
		all = append(all, users...)
	}
	if path, ok := strings.CutPrefix(os.Getenv("DOCKER_HOST"), "unix://"); ok {
		all = append(all, path)
	}
	return all
}

// exposedSocket returns the socket that is reachable through a mounted source: the source itself under any name, or a socket
// below it or below a mount under it. It returns "" if no socket is reachable.
func exposedSocket(source string, sockets []string) string {
	if source == "" {
		return ""
	}
	if filepath.Base(source) == "docker.sock" {
		return source
	}
	source = resolved(source)
	below, err := mountsBelow(source)
	if err != nil {
		return source // could lead to any socket
	}
	shown := []os.FileInfo{}
	for _, m := range append(below, inside.MountPoint{At: source}) {
		if info, err := os.Stat(m.At); err == nil {
			shown = append(shown, info)
		}
	}
	for _, socket := range sockets {
		if socket == "" {
			continue
		}
		for at := resolved(socket); ; at = filepath.Dir(at) {
			there, err := os.Stat(at)
			same := func(info os.FileInfo) bool { return os.SameFile(there, info) }
			if at == source || err == nil && slices.ContainsFunc(shown, same) {
				return socket
			}
			if at == filepath.Dir(at) {
				break
			}
		}
	}
	return ""
}

// resolved resolves the links of a path, as far as it exists.
func resolved(path string) string {
	path = filepath.Clean(path)
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	if dir := filepath.Dir(path); dir != path {
		return filepath.Join(resolved(dir), filepath.Base(path))
	}
	return path
}

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

package preflight

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sys/unix"

	"boxgate/config"
)

// NeedRoot returns an error unless the process runs as root, with the necessary capabilities.
func NeedRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("the gateway changes the kernel's network and starts containers: run it as root (sudo)")
	}
	return needCapabilities()
}

// capabilities are the Linux capabilities that boxes' networks and processes require.
var capabilities = map[string]int{"CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN}

// needCapabilities returns an error for missing capabilities, which a systemd unit or a container may have dropped.
func needCapabilities() error {
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return nil // unknown; a missing capability will fail with its own error
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(capabilities)) {
		if data[0].Effective&(1<<capabilities[name]) == 0 {
			errs = append(errs, fmt.Errorf("the process is root without %s: run it on the host itself, or add it (CapabilityBoundingSet of the unit, --cap-add of a container)", name))
		}
	}
	return errors.Join(errs...)
}

// needIPv6 requires IPv6 on this host. Boxes get addresses and rules of both families; with IPv6 disabled, some of the
// rules could not be written.
func needIPv6() error {
	for _, where := range []string{"all", "lo"} {
		key := "net.ipv6.conf." + where + ".disable_ipv6"
		off, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(key, ".", "/"))
		if errors.Is(err, os.ErrNotExist) {
			return errors.New("this host has no IPv6, which boxes need: boot without ipv6.disable=1, and load the module ipv6 " +
				"(boxes reach IPv6 addresses only where their policy and the host's uplink allow it)")
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", key, err)
		}
		if strings.TrimSpace(string(off)) != "0" {
			return fmt.Errorf("IPv6 is off on this host, and boxes need it (%s is %s): run sysctl -w %s=0, and set it in /etc/sysctl.d",
				key, strings.TrimSpace(string(off)), key)
		}
	}
	return nil
}

// needCgroups requires cgroups, which the runtime uses to limit boxes: version 2 in one hierarchy, or version 1 with one
// hierarchy per controller.
func needCgroups() error {
	const root = "/sys/fs/cgroup"
	controllers, errV2 := os.ReadFile(root + "/cgroup.controllers")
	for _, c := range []string{"cpu", "memory", "pids"} {
		_, errV1 := os.Stat(filepath.Join(root, c))
		if !slices.Contains(strings.Fields(string(controllers)), c) && errV1 != nil {
			if errV2 != nil {
				return fmt.Errorf("no control group of %s is mounted below %s: run mount -t cgroup2 cgroup2 %s, or let systemd do it", c, root, root)
			}
			return fmt.Errorf("the control groups below %s have no controller %s: boot without cgroup_disable=%s", root, c, c)
		}
		where := root
		if errV2 != nil {
			where = filepath.Join(root, c)
		}
		if unix.Access(where, unix.W_OK) != nil {
			return fmt.Errorf("control groups cannot be made below %s: mount it writable (mount -o remount,rw %s; in a unit, ProtectControlGroups=no and "+
				"Delegate=yes; in a container, run it privileged)", where, where)
		}
	}
	return nil
}

// CheckImages checks the images that boxes may request by name.
func CheckImages(cfg config.Config) error {
	if !cfg.Launcher.Enabled {
		return nil
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(cfg.Launcher.Images)) {
		if name != "default" {
			errs = append(errs, CheckImage(name, cfg.Launcher.Images[name]))
		}
	}
	return errors.Join(errs...)
}

// CheckImage requires that the image of an entry of launcher.images is built here, a path that exists, or a valid registry
// reference.
func CheckImage(key, source string) error {
	var err error
	switch {
	case config.BuiltHere(source):
	case filepath.IsAbs(source):
		if _, err = os.Stat(source); errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("there is no %s: name an image that exists, or debian in launcher.images", source)
		}
	default:
		_, err = name.ParseReference(source)
	}
	if err != nil {
		return fmt.Errorf("launcher.images: %s: %w", key, err)
	}
	return nil
}

func needFilesystem(name string) error {
	data, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[len(fields)-1] == name {
			return nil
		}
	}
	return fmt.Errorf("this kernel has no %s file system: load the module (modprobe %s)", name, name)
}

// needMappedMounts requires user namespaces, and support for ID-mapped mounts in the file systems of the image directory
// and of the state directory, which has the boxes' layers.
func needMappedMounts(cfg config.Config) error {
	if os.Geteuid() != 0 {
		return nil // NeedRoot reports that
	}
	ns, err := userNamespace()
	if err != nil {
		return fmt.Errorf("boxes need user namespaces: %w (is user.max_user_namespaces 0?)", err)
	}
	defer ns.Close()
	var errs []error
	for key, dir := range map[string]string{"state_dir": cfg.StateDir, "launcher.image_dir": config.ImageDir(cfg)} {
		if err := mapMount(dir, ns); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	return errors.Join(errs...)
}

// userNamespace returns a user namespace with mapped IDs. Making one takes a process: a child is started under ptrace, so
// that it stops before its first instruction, and is killed afterwards.
func userNamespace() (*os.File, error) {
	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	ids := []syscall.SysProcIDMap{{HostID: 1 << 30, Size: 1 << 16}}
	child, err := os.StartProcess("/proc/self/exe", []string{"probe"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, Ptrace: true, Pdeathsig: syscall.SIGKILL,
	}})
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = child.Kill()
		_, _ = child.Wait()
	}()
	return os.Open(fmt.Sprintf("/proc/%d/ns/user", child.Pid))
}

// mapMount tries an ID-mapped mount of the directory, or of its nearest existing parent, without attaching it anywhere.
func mapMount(dir string, ns *os.File) error {
	at := dir
	info, err := os.Stat(at)
	for errors.Is(err, os.ErrNotExist) && at != "/" {
		at = filepath.Dir(at)
		info, err = os.Stat(at)
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory; move it away or set another path", at)
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, at, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("the file system of %s cannot be mounted with mapped owners (%w): use ext4, xfs or btrfs, and "+
			"Linux 5.19 or later", at, err)
	}
	return nil
}

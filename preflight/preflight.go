// Package preflight checks the requirements of the gateway on its host, and explains how to meet missing ones. It has no
// side effects.
package preflight

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/launcher/enter"
	"boxgate/launcher/oci"
)

// Finding is the result of one check. Err is nil if it passed.
type Finding struct {
	What string
	Err  error
}

// Check checks the requirements on the host, except those on its network. Each error explains how to fix it.
func Check(cfg config.Config) []Finding {
	findings := []Finding{
		{"root", NeedRoot()},
		{"IPv6", needIPv6()},
	}
	if !cfg.Launcher.Enabled { // the checks below are for launched boxes
		return findings
	}
	if cfg.Launcher.Root {
		findings = append(findings, Finding{"root in boxes, by launcher.root", nil})
	}
	return append(findings, []Finding{
		{"control groups", needCgroups()},
		{"runtime " + cfg.Launcher.Runtime, needRuntime(cfg.Launcher.Runtime)},
		{"overlayfs", needFilesystem("overlay")},
		{"id-mapped mounts", needMappedMounts(cfg)},
	}...)
}

// Warning is an error that does not prevent the gateway from working.
type Warning struct{ error }

// Warnf returns a [Warning]. The text should describe the risk and how to fix it.
func Warnf(format string, args ...any) error { return Warning{fmt.Errorf(format, args...)} }

// Errors splits a joined error into single errors.
func Errors(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, Errors(e)...)
	}
	return out
}

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

// NeedWritable requires that the directory configured by key can be written to, or created. It has no side effects.
func NeedWritable(key, dir string) error {
	at := dir
	info, err := os.Stat(at)
	for err != nil && at != "/" && !errors.Is(err, unix.EACCES) {
		at = filepath.Dir(at)
		info, err = os.Stat(at)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s: %s cannot be entered: set another path", key, at)
	case !info.IsDir():
		return fmt.Errorf("%s: %s is not a directory: move it away or set another path", key, at)
	}
	switch err := unix.Access(at, unix.W_OK|unix.X_OK); {
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%s: the file system of %s is mounted read-only: mount it writable (in a unit, ReadWritePaths=%s), or set another path", key, at, at)
	case err != nil:
		return fmt.Errorf("%s: %s cannot be written to: set another path, or its owner and mode", key, at)
	}
	return nil
}

// firstStart is the disk space in bytes that the first start needs for the store and its key.
const firstStart = 1 << 20

// NeedSpace requires that the file system of the directory configured by key has space for a first start.
func NeedSpace(key, dir string) error {
	at, fs, err := statfs(dir)
	free := fs.Bavail * uint64(fs.Bsize)
	if err != nil || free >= firstStart {
		return nil // unknown
	}
	return fmt.Errorf("%s: the disk of %s is full (%d KiB are free): make room, or set another path", key, at, free>>10)
}

// CheckFree returns an error if the file system of the directory configured by key is full, so that the gateway cannot store changes,
// and a warning if less than the reserve is free, so that no box can be created. The reserve counts as at most a tenth of the
// file system.
func CheckFree(key, dir string, reserve uint64) error {
	at, fs, err := statfs(dir)
	if err != nil {
		return nil //nolint:nilerr // reported by NeedWritable
	}
	free, kept := fs.Bavail*uint64(fs.Bsize), min(reserve, fs.Blocks*uint64(fs.Bsize)/10)
	const remedy = "delete boxes, snapshots or images, or enlarge it"
	switch {
	case free < firstStart:
		return fmt.Errorf("%s: the disk of %s is full (%d KiB are free), so changes cannot be stored: %s", key, at, free>>10, remedy)
	case fs.Files > 0 && fs.Ffree < fewFiles:
		return Warnf("%s: the disk of %s has room for only %d more files: %s", key, at, fs.Ffree, remedy)
	case free < kept:
		return Warnf("%s: %d MiB are free on the disk of %s, less than the %d MiB that are kept for the gateway (launcher.reserve), so no box, snapshot or image can be created: %s",
			key, free>>20, at, kept>>20, remedy)
	}
	return nil
}

// fewFiles is the number of free inodes below which a file system counts as nearly full.
const fewFiles = 2000

// statfs returns the state of the file system that contains dir, or its nearest existing parent, which it returns too.
func statfs(dir string) (at string, fs unix.Statfs_t, err error) {
	at = dir
	err = unix.Statfs(at, &fs)
	for err != nil && at != "/" && at != "." {
		at = filepath.Dir(at)
		err = unix.Statfs(at, &fs)
	}
	return at, fs, err
}

// kernelSupply is a kernel limit for the whole host, or for each user and so for each box, whose default is often too
// low.
type kernelSupply struct {
	file        string // below /proc/sys
	minimum     uint64
	recommended uint64 // recommended value
	consequence string // consequence of a lower value
}

// kernelSupplies are the resources that `gateway check` checks. Boxes cannot exhaust per-user limits; host-wide limits
// must suffice for all boxes at their limits.
var kernelSupplies = []kernelSupply{
	{"kernel/pid_max", 1 << 17, 1 << 22, "a box may have 2,048 processes or more, depending on its size; when they run out, no command can be started"},
	{"kernel/threads-max", 1 << 17, 1 << 22, "a box may have 2,048 threads or more, depending on its size; when they run out, no command can be started"},
	{"kernel/pty/max", 4096, 1 << 16, "a box may have 64 terminals"},
	{"fs/file-max", 1 << 24, 1<<63 - 1, "a box may open as many files as fit into its memory; when they run out, only root can open any"},
	{"fs/aio-max-nr", 1 << 16, 1 << 20, "attached boxes share it with the host; launched ones get none"},
	{"fs/inotify/max_user_instances", 128, 1024, "the limit applies per box; above it, programs that watch files fail with EMFILE"},
	{"fs/inotify/max_user_watches", 1 << 16, 1 << 19, "the limit applies per box; above it, programs that watch files fail with ENOSPC"},
}

// CheckSupplies warns about limits that are too low. Limits that the kernel does not have are skipped.
func CheckSupplies(sysctls string) error {
	var errs []error
	for _, s := range kernelSupplies {
		data, err := os.ReadFile(filepath.Join(sysctls, s.file))
		if err != nil {
			continue
		}
		have, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
		if err == nil && have < s.minimum {
			key := strings.ReplaceAll(s.file, "/", ".")
			errs = append(errs, Warnf("%s is %d: %s; set it in /etc/sysctl.d/boxgate.conf: %s = %d", key, have, s.consequence, key, s.recommended))
		}
	}
	return errors.Join(errs...)
}

// needRuntime requires the OCI runtime of boxes, given by name or path, and warns about missing features.
func needRuntime(program string) error {
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%s is missing: %s, or name another OCI runtime in launcher.runtime", program, oci.ByName(program).Install)
	}
	return errors.Join(runtimeLacks(program, "/sys/fs/cgroup"), needEntering(program))
}

// needEntering warns if the runtime has to start every command of boxes, although boxes of that runtime can be entered.
func needEntering(program string) error {
	if !oci.ByName(program).Enterable {
		return nil
	}
	p, err := enter.New()
	if err != nil {
		return Warnf("every command in a box is started by the runtime, which takes some ten milliseconds more, since this host or unit keeps the gateway from running a program in memory: %w", err)
	}
	return p.Close()
}

// runtimeLacks warns about features missing from a runtime on a host whose cgroups are mounted at a path.
func runtimeLacks(program, cgroups string) error {
	if lacks := oci.ByName(program).Missing(cgroups); lacks != "" {
		return Warnf("%s", lacks)
	}
	return nil
}

// CheckAppArmor warns of AppArmor profiles that hinder the gateway or its boxes: one that confines this program, one that
// is loaded for the OCI runtime, and the restriction of user namespaces of Ubuntu 24.04. root is the file system with
// /proc and /sys, usually "/"; runtime is empty if no boxes are launched.
func CheckAppArmor(root, runtime string) error {
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return "" // without AppArmor, the files do not exist
		}
		return strings.TrimRight(string(text), "\x00\n")
	}
	if read("sys/module/apparmor/parameters/enabled") != "Y" {
		return nil
	}
	own := read("proc/self/attr/apparmor/current")
	if own == "" {
		own = read("proc/self/attr/current") // before Linux 5.8
	}
	var errs []error
	if name, enforced := strings.CutSuffix(own, " (enforce)"); enforced {
		errs = append(errs, hinders(name, "the gateway"))
	}
	if runtime != "" {
		if name := enforcedFor(filepath.Join(root, "sys/kernel/security/apparmor/profiles"), runtime); name != "" {
			errs = append(errs, hinders(name, "the runtime "+runtime))
		}
	}
	if read("proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" {
		errs = append(errs, Warnf("AppArmor lets no unprivileged program make a user namespace: browsers with their own sandbox and bubblewrap "+
			"fail in boxes and under gateway run; sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, and set it in /etc/sysctl.d"))
	}
	return errors.Join(errs...)
}

func hinders(profile, whom string) error {
	return Warnf("the AppArmor profile %s confines %s, which makes namespaces, mounts and network rules and starts boxes, also confined: "+
		"aa-disable %s (package apparmor-utils)", profile, whom, profile)
}

// enforcedFor returns the profile in a list of loaded ones (apparmorfs, "NAME (MODE)") that is enforced for a program:
// those of files are named after the program or its path.
func enforcedFor(list, program string) string {
	f, err := os.Open(list)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, enforced := strings.CutSuffix(lines.Text(), " (enforce)")
		if enforced && filepath.Base(name) == filepath.Base(program) {
			return name
		}
	}
	return ""
}

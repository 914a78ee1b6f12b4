// Package container writes the OCI runtime's configuration of boxes and of commands in them: privileges, seccomp profile
// and limits. It determines how a box is confined.
package container

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// capabilities are the capabilities of root in a box: Docker's default without NET_RAW, so that boxes cannot forge packets, and
// without MKNOD and AUDIT_WRITE, which the kernel honours in its first user namespace only. docs/boxes.md lists what each is for.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// maskedPaths and readonlyPaths are files of /proc and /sys that reveal or affect the host: Docker's, and the parent
// directory of version 1 control groups.
var maskedPaths = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
	"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
	"/sys/devices/virtual/powercap", "/sys/firmware",
}

var readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", "/sys/fs/cgroup"}

// oomScore makes the kernel kill processes of boxes before the host's services when memory runs out.
const oomScore = 500

// Box describes a box's container.
type Box struct {
	Root          string // mount point of its root file system
	Init          string // the first process, in the box
	UserNS, NetNS string // pinned namespaces; without a user namespace the runtime makes one
	Cgroup        string
	Hostname      string
	IDs           []specs.LinuxIDMapping
	Limits        Limits
	NoDiskLimit   bool // the box's disk usage is not limited
}

// Config returns the runtime's configuration of a box.
func (b Box) Config() (*specs.Spec, error) {
	config := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: b.Root},
		Process: &specs.Process{
			Args: []string{b.Init}, Cwd: "/", NoNewPrivileges: true,
			Env:          []string{"HOME=/"},         // otherwise the runtime looks it up in a file of the box
			Capabilities: &specs.LinuxCapabilities{}, // the first process has no capabilities
			OOMScoreAdj:  new(oomScore),
			Rlimits:      specRlimits(b.Limits),
		},
		Hostname: b.Hostname,
		Mounts:   mounts(b.Limits),
		Linux: &specs.Linux{
			UIDMappings: b.IDs, GIDMappings: b.IDs,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.MountNamespace}, {Type: specs.CgroupNamespace},
				{Type: specs.UserNamespace, Path: b.UserNS},
				{Type: specs.NetworkNamespace, Path: b.NetNS},
			},
			CgroupsPath:       b.Cgroup,
			Resources:         resources(b.Limits),
			RootfsPropagation: "private",
			MaskedPaths:       maskedPaths,
			ReadonlyPaths:     readonlyPaths,
		},
	}
	var err error
	if config.Linux.Seccomp, err = seccompProfile(config, b.NoDiskLimit); err != nil {
		return nil, fmt.Errorf("the seccomp profile: %w", err)
	}
	return config, nil
}

func boundTo(caps []string) *specs.LinuxCapabilities {
	return &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
}

// mounts returns the mounts of a box in addition to its root. No mount comes from the host.
func mounts(lim Limits) []specs.Mount {
	tmpfs := func(at string, opts ...string) specs.Mount {
		return specs.Mount{Destination: at, Type: "tmpfs", Source: "tmpfs", Options: append(opts, "nosuid", "nodev")}
	}
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=64k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
			Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", fmt.Sprintf("max=%d", maxPtys)}},
		tmpfs("/dev/shm", "noexec", "mode=1777", "size=64m"),
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro", "nosuid", "noexec", "nodev"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro", "nosuid", "noexec", "nodev"}},
		tmpfs("/tmp", "mode=1777", fmt.Sprintf("size=%d", lim.Memory/2)), // counts as memory of the box
	}
}

// resources returns the limits of a box. Only harmless devices are allowed; a box cannot create device nodes anyway.
func resources(lim Limits) *specs.LinuxResources {
	period := uint64(100_000) // microseconds, the kernel's default
	r := &specs.LinuxResources{
		Devices: allowedDevices(),
		Memory:  &specs.LinuxMemory{Limit: &lim.Memory},
		CPU:     &specs.LinuxCPU{Quota: new(lim.CPUs * int64(period)), Period: &period},
		Pids:    &specs.LinuxPids{Limit: &lim.Pids},
	}
	r.BlockIO = blockIO(lim.IO)
	if canLimitSwap() {
		r.Memory.Swap = &lim.Memory // memory and swap together: a box does not swap
	}
	return r
}

// blockIO returns nil if no limit is set.
func blockIO(io IO) *specs.LinuxBlockIO {
	b, limited := &specs.LinuxBlockIO{}, false
	for _, l := range []struct {
		rate int64
		list *[]specs.LinuxThrottleDevice
	}{
		{io.ReadBytes, &b.ThrottleReadBpsDevice}, {io.WriteBytes, &b.ThrottleWriteBpsDevice},
		{io.Reads, &b.ThrottleReadIOPSDevice}, {io.Writes, &b.ThrottleWriteIOPSDevice},
	} {
		if l.rate > 0 {
			d := specs.LinuxThrottleDevice{Rate: uint64(l.rate)}
			d.Major, d.Minor = io.Major, io.Minor
			*l.list, limited = append(*l.list, d), true
		}
	}
	if !limited {
		return nil
	}
	return b
}

// canLimitSwap reports whether the kernel accounts swap; with version 1 control groups that is a kernel option.
func canLimitSwap() bool {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return true
	}
	_, err := os.Stat("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes")
	return err == nil
}

func allowedDevices() []specs.LinuxDeviceCgroup {
	list := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	for _, d := range [][2]int64{
		{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, // null, zero, full, random, urandom
		{5, 0}, {5, 2}, // tty, ptmx
	} {
		list = append(list, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &d[0], Minor: &d[1], Access: "rw"})
	}
	return append(list, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: new(int64(136)), Access: "rw"}) // pts
}

// Limits bound the resources of a box.
type Limits struct {
	CPUs   int64
	Memory int64 // bytes
	Pids   int64
	IO     IO
}

// IO bounds reads and writes of a box on one disk, per second; 0 is no limit.
type IO struct {
	Major, Minor          int64 // of the disk
	ReadBytes, WriteBytes int64
	Reads, Writes         int64
}

// ForDir returns the limits for the disk of a directory. The kernel limits whole disks, not partitions.
func (io IO) ForDir(dir string) (IO, error) {
	if io == (IO{}) {
		return io, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return io, err
	}
	device := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	at, err := filepath.EvalSymlinks(device)
	if err != nil {
		return io, fmt.Errorf("launcher.io: %s is not on a disk that the kernel can limit (no %s); remove launcher.io, or move state_dir", dir, device)
	}
	if _, err := os.Stat(filepath.Join(at, "partition")); err == nil {
		at = filepath.Dir(at)
	}
	number, err := os.ReadFile(filepath.Join(at, "dev"))
	if err == nil {
		_, err = fmt.Sscanf(strings.TrimSpace(string(number)), "%d:%d", &io.Major, &io.Minor)
	}
	if err != nil {
		return io, fmt.Errorf("launcher.io: the disk of %s: %w", dir, err)
	}
	return io, nil
}

// Command describes one command in a box.
type Command struct {
	Args     []string
	Env      []string
	Cwd      string
	UID, GID int // in the box
	Limits   Limits
	Terminal *specs.Box // the size of its terminal, or nil
	// SetUserID: programs with the set-user-ID bit or file capabilities have their effect, up to the capabilities of
	// the box's root.
	SetUserID bool
}

// Process returns the runtime's configuration of the command. Only root gets capabilities.
func (c Command) Process() *specs.Process {
	caps := &specs.LinuxCapabilities{Bounding: capabilities}
	if c.UID == 0 {
		caps = boundTo(capabilities)
	}
	return &specs.Process{
		Terminal: c.Terminal != nil, ConsoleSize: c.Terminal,
		Args: c.Args, Env: c.Env, Cwd: c.Cwd,
		User:            specs.User{UID: uint32(c.UID), GID: uint32(c.GID)},
		Capabilities:    caps,
		NoNewPrivileges: !c.SetUserID,
		OOMScoreAdj:     new(oomScore),
		Rlimits:         specRlimits(c.Limits),
	}
}

// withheld are system calls that the default profile allows but boxes may not use. The contexts of io_setup are limited for
// the whole host (fs.aio-max-nr), and a single process can use them all.
var withheld = []string{"io_setup"}

// allocation is the system call that takes disk space without a write. If the disk of a box is not limited, its usage is
// watched through its writes (cgroup.Writes), so this call is refused; posix_fallocate of the C library then writes
// instead.
const allocation = "fallocate"

// seccompProfile returns the default profile of the runtimes without the withheld calls, for which programs get ENOSYS, as
// they expect from old kernels. With writesOnly, disk space can only be taken by writes.
//
// x32 is left out: the filter then kills a thread that makes an x32 call. Few kernels support x32, and it has had its own
// vulnerabilities (CVE-2014-0038). It was also a third of the cost of compiling the filter, which the runtime does again
// for each command.
func seccompProfile(config *specs.Spec, writesOnly bool) (*specs.LinuxSeccomp, error) {
	// The profile depends on capabilities, so it is computed with the capabilities of commands.
	forProfile := *config
	forProfile.Process = &specs.Process{Capabilities: boundTo(capabilities)}
	profile, err := seccomp.GetDefaultProfile(&forProfile)
	if err != nil {
		return nil, err
	}
	profile.Architectures = slices.DeleteFunc(profile.Architectures, func(a specs.Arch) bool { return a == specs.ArchX32 })
	for i := range profile.Syscalls {
		profile.Syscalls[i].Names = slices.DeleteFunc(slices.Clone(profile.Syscalls[i].Names), func(name string) bool {
			return slices.Contains(withheld, name) || writesOnly && name == allocation
		})
	}
	profile.Syscalls = append(profile.Syscalls, specs.LinuxSyscall{
		Names: withheld, Action: specs.ActErrno, ErrnoRet: new(uint(unix.ENOSYS)),
	})
	if writesOnly {
		profile.Syscalls = append(profile.Syscalls, specs.LinuxSyscall{
			Names: []string{allocation}, Action: specs.ActErrno, ErrnoRet: new(uint(unix.EOPNOTSUPP)),
		})
	}
	return profile, nil
}

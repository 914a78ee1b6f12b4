package disk

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Limit is how much a box can write.
type Limit struct{ Bytes, Files int64 }

// Formatter is the program that makes the file system of a volume.
const Formatter = "mkfs.ext4"

// Volume is a separate file system in a sparse file, which only takes the used space on disk.
type Volume struct {
	File string // the file
	At   string // mount point
}

// Make creates the volume and mounts it. The file must not exist.
func (v Volume) Make(ctx context.Context, l Limit) error {
	f, err := os.OpenFile(v.File, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = f.Truncate(l.Bytes)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("the file of the box's disk: %w", err)
	}
	// Inodes are written on first use, see noinit_itable.
	format := exec.CommandContext(ctx, Formatter, "-q", "-F", "-m", "0", "-J", "size=16", "-N", strconv.FormatInt(l.Files, 10),
		"-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", v.File)
	if out, err := format.CombinedOutput(); err != nil {
		return fmt.Errorf("the file system of the box's disk: %w: %s", err, strings.TrimSpace(string(out)))
	}
	if err := os.Mkdir(v.At, 0o700); err != nil {
		return err
	}
	return v.Mount()
}

// Mount mounts the volume unless it is already mounted. MS_NOSUID keeps users of the host from running the box's
// set-user-ID programs; the box itself sees the files through an overlay.
func (v Volume) Mount() error {
	if mounted, err := v.mounted(); err != nil || mounted {
		return err
	}
	device, err := attach(v.File)
	if err != nil {
		return fmt.Errorf("a loop device for the box's disk: %w", err)
	}
	defer device.Close() // the loop device is released when the file system is unmounted
	err = unix.Mount(device.Name(), v.At, "ext4", unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOATIME, "noinit_itable,discard,errors=remount-ro")
	if err != nil {
		return fmt.Errorf("the box's disk cannot be mounted: %w", err)
	}
	return nil
}

// mounted reports whether there is a mount at the volume's mount point.
func (v Volume) mounted() (bool, error) {
	var at, above unix.Stat_t
	if err := errors.Join(unix.Lstat(v.At, &at), unix.Lstat(filepath.Dir(v.At), &above)); err != nil {
		return false, err
	}
	return at.Dev != above.Dev, nil
}

// Unmount unmounts the volume, if it is mounted. The loop device disappears with the last process that uses it.
func (v Volume) Unmount() error {
	for {
		mounted, err := v.mounted()
		if errors.Is(err, fs.ErrNotExist) || err == nil && !mounted {
			return nil
		}
		if err != nil {
			return err
		}
		if err := unix.Unmount(v.At, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("the box's disk cannot be unmounted: %w", err)
		}
	}
}

// attach returns an open loop device of a file, which is released when it is closed and not mounted. A file that has a
// device keeps it: its file system may still be mounted in another mount namespace, such as the box's own after the gateway
// got a new one, and two devices of one file would be two file systems that overwrite each other.
func attach(file string) (*os.File, error) {
	backing, err := os.OpenFile(file, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	attaching.Lock()
	defer attaching.Unlock()
	if device, err := attached(backing); err != nil || device != nil {
		return device, err
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: load the module (modprobe loop)", err)
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, err
		}
		device, err := openLoop(n, os.O_RDWR)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &unix.LoopConfig{
			Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO},
		})
		if err == nil {
			return device, nil
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) { // EBUSY: another process was faster
			return nil, err
		}
	}
}

// attaching serializes attach, so that two calls for a file find one device.
var attaching sync.Mutex

// attached returns the loop device that a file is attached to, open, or nil if there is none. Only devices of files of its name are
// opened: others belong to somebody else, and the file system of their files may fail or never answer.
func attached(backing *os.File) (*os.File, error) {
	var file unix.Stat_t
	if err := unix.Fstat(int(backing.Fd()), &file); err != nil {
		return nil, err
	}
	inUse, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return nil, err
	}
	for _, dir := range inUse {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(dir)), "loop"))
		if err != nil || !hasNameOf(dir, backing.Name()) {
			continue
		}
		device, err := openLoop(n, os.O_RDONLY)
		if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) { // it was just removed
			continue
		}
		if err != nil {
			return nil, err
		}
		// An open device stays attached, so this answer holds until it is closed.
		info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		if err == nil && info.Device == file.Dev && info.Inode == file.Ino {
			return device, nil
		}
		device.Close()
		if err != nil && !errors.Is(err, unix.ENXIO) { // ENXIO: nothing is attached any longer
			return nil, fmt.Errorf("loop device %d: %w", n, err)
		}
	}
	return nil, nil
}

// hasNameOf reports whether the file of a loop device, given by its directory in sysfs, may be this one: its directory and name are
// the same. What is above depends on the mount by which it was opened.
func hasNameOf(dir, file string) bool {
	text, err := os.ReadFile(filepath.Join(dir, "backing_file"))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) // it was just detached
	}
	theirs := strings.TrimSuffix(string(text), "\n")
	return filepath.Base(theirs) == filepath.Base(file) && filepath.Base(filepath.Dir(theirs)) == filepath.Base(filepath.Dir(file))
}

// openLoop opens a loop device. Not every /dev has its node.
func openLoop(n, flag int) (*os.File, error) {
	path := "/dev/loop" + strconv.Itoa(n)
	device, err := os.OpenFile(path, flag, 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return device, err
	}
	const loopMajor = 7
	if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(n)))); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return os.OpenFile(path, flag, 0)
}

// The kernel's interface for quotas, see quotactl(2), and FS_IOC_FSSETXATTR in ioctl_xfs_fsgetxattr(2).
const (
	getQuota      = 0x800007
	setQuota      = 0x800008
	quotaProject  = 2
	validLimits   = 1 | 4 // QIF_BLIMITS, QIF_ILIMITS
	quotaBlock    = 1024
	getAttributes = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributes = 0x401c5820 // FS_IOC_FSSETXATTR
	inheritFlag   = 0x200      // FS_XFLAG_PROJINHERIT
)

// quota is struct if_dqblk.
type quota struct {
	BlockHard, BlockSoft, Space  uint64
	InodeHard, InodeSoft, Inodes uint64
	BlockTime, InodeTime         uint64
	Valid                        uint32
	_                            uint32
}

// attributes is struct fsxattr.
type attributes struct {
	Flags, ExtentSize, Extents, Project, CowSize uint32
	_                                            [8]byte
}

// ErrNoProjects means that the file system has no project quotas.
var ErrNoProjects = errors.New("the file system has no project quotas")

// HasProjects returns nil if the file system of a directory enforces project quotas.
func HasProjects(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	var q quota
	if err := quotactl(f, getQuota, 0, &q); err != nil {
		return fmt.Errorf("%w (%w)", ErrNoProjects, err)
	}
	return nil
}

// Project is the ID of a quota project; 0: no project.
type Project uint32

// NewProject finds an unused project, and sets its limits.
func NewProject(dir string, l Limit) (Project, error) {
	f, err := os.Open(dir)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for {
		var random [4]byte
		_, _ = rand.Read(random[:])
		p := Project(binary.LittleEndian.Uint32(random[:])>>2 | 1<<30) // above IDs that people choose
		var q quota
		if err := quotactl(f, getQuota, p, &q); err != nil {
			return 0, fmt.Errorf("%w (%w)", ErrNoProjects, err)
		}
		if q.Space == 0 && q.Inodes == 0 && q.BlockHard == 0 && q.InodeHard == 0 {
			return p, setLimits(f, p, l)
		}
	}
}

// Free removes the limits of a project, so that the file system forgets it when it has no files.
func (p Project) Free(dir string) error {
	if p == 0 {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return setLimits(f, p, Limit{})
}

func setLimits(f *os.File, p Project, l Limit) error {
	q := quota{Valid: validLimits, BlockHard: uint64(l.Bytes) / quotaBlock, InodeHard: uint64(l.Files)}
	q.BlockSoft, q.InodeSoft = q.BlockHard, q.InodeHard
	if err := quotactl(f, setQuota, p, &q); err != nil {
		return fmt.Errorf("the quota of the box's disk: %w", err)
	}
	return nil
}

// Own makes an empty directory, and everything that will be created in it, part of a project. This cannot be undone from
// within a user namespace.
func (p Project) Own(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	var a attributes
	if err := ioctl(f, getAttributes, unsafe.Pointer(&a)); err != nil {
		return fmt.Errorf("the project of the box's disk: %w", err)
	}
	a.Flags, a.Project = a.Flags|inheritFlag, uint32(p)
	if err := ioctl(f, setAttributes, unsafe.Pointer(&a)); err != nil {
		return fmt.Errorf("the project of the box's disk: %w", err)
	}
	return nil
}

func quotactl(f *os.File, command uint32, p Project, q *quota) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), uintptr(command<<8|quotaProject), uintptr(p), uintptr(unsafe.Pointer(q)), 0, 0)
	if errno != 0 && (command != getQuota || errno != unix.ENOENT) { // xfs has no record of a project without usage
		return errno
	}
	return nil
}

func ioctl(f *os.File, command uintptr, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), command, uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}

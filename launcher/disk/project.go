package disk

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

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

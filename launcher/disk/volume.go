package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

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

// attach attaches a file to a loop device, which is released when it is closed and not mounted.
func attach(file string) (*os.File, error) {
	backing, err := os.OpenFile(file, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
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
		device, err := openLoop(n)
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

// openLoop opens a loop device. Not every /dev has its node.
func openLoop(n int) (*os.File, error) {
	path := "/dev/loop" + strconv.Itoa(n)
	device, err := os.OpenFile(path, os.O_RDWR, 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return device, err
	}
	const loopMajor = 7
	if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(n)))); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}

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

// Volume is a file system of its own in a sparse file, which takes on the disk what is in it.
type Volume struct {
	File string // the file
	At   string // where it is mounted
}

// Make makes the volume and mounts it. The file must not exist.
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
	// Inodes are written when they are first used: see noinit_itable.
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

// Mount mounts the volume unless it is mounted. Programs that it has are nobody's to run but the box's, to which its files are
// shown by an overlay.
func (v Volume) Mount() error {
	if mounted, err := v.mounted(); err != nil || mounted {
		return err
	}
	device, err := attach(v.File)
	if err != nil {
		return fmt.Errorf("a loop device for the box's disk: %w", err)
	}
	defer device.Close() // it is released when the file system is unmounted
	err = unix.Mount(device.Name(), v.At, "ext4", unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOATIME, "noinit_itable,discard,errors=remount-ro")
	if err != nil {
		return fmt.Errorf("the box's disk cannot be mounted: %w", err)
	}
	return nil
}

// mounted reports whether something is mounted where the volume belongs.
func (v Volume) mounted() (bool, error) {
	var at, above unix.Stat_t
	if err := errors.Join(unix.Lstat(v.At, &at), unix.Lstat(filepath.Dir(v.At), &above)); err != nil {
		return false, err
	}
	return at.Dev != above.Dev, nil
}

// Unmount takes the volume off the host, if it is mounted. The loop device goes with the last process that uses it.
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

// attach gives a file a loop device, which goes when it is closed and not mounted.
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
		if !errors.Is(err, unix.EBUSY) { // somebody else was faster
			return nil, err
		}
	}
}

// openLoop opens a loop device, whose node not every /dev has.
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

// Package overlay mounts the root of a box: its writable layer over an image that all boxes share.
package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Layers are the directories that the root of a box is made of.
type Layers struct {
	Image   string   // the root file system of the image; read-only
	Stack   []string // layers over the image, the lowest first; read-only, like the image
	UserPin string   // the box's user namespace, which maps the image's owners
	Upper   string   // the box's writable layer
	Work    string   // overlayfs's own
	Mounts  string   // directory of the following two mount points
	Lower   string   // the image with mapped owners
	Root    string   // the root of the box
	// SetUserID: programs in the root may change their user. The kernel allows that only in a mount namespace of the box,
	// and only to users of the box.
	SetUserID bool
}

// Mount mounts a box's writable layer, which may already exist, over the image. owner is the box's root on the host. The
// mounts are needed while the box is created: the runtime copies them into the box's mount namespace, and then [Unmount]
// removes them from the host.
func (l Layers) Mount(owner int) error {
	for _, dir := range []struct {
		path  string
		mode  os.FileMode
		owner int
		stays bool // it may exist, as the box left it
	}{ // accessible to the mapped root, but not to other boxes'
		{l.Mounts, 0o700, owner, false}, {l.Lower, 0o755, 0, false}, {l.Root, 0o755, 0, false}, {l.Upper, 0o755, owner, true}, {l.Work, 0o755, 0, true},
	} {
		err := os.Mkdir(dir.path, dir.mode)
		if dir.stays && errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = errors.Join(os.Chmod(dir.path, dir.mode), os.Chown(dir.path, dir.owner, dir.owner))
		}
		if err != nil {
			return err
		}
	}
	lowers, err := l.mountLowers()
	if err != nil {
		return err
	}
	return l.mountOverlay(lowers)
}

// mountLowers mounts the read-only layers, and returns their mount points, the highest first.
func (l Layers) mountLowers() ([]string, error) {
	lowers := []string{l.Lower}
	if err := mountIDMapped(l.Image, l.Lower, l.UserPin); err != nil {
		return nil, err
	}
	for i, layer := range l.Stack {
		at := fmt.Sprint(l.Lower, i+1)
		if err := os.Mkdir(at, 0o755); err != nil {
			return nil, err
		}
		if err := mountIDMapped(layer, at, l.UserPin); err != nil {
			return nil, err
		}
		lowers = append([]string{at}, lowers...)
	}
	return lowers, nil
}

// mountIDMapped mounts a directory at another path, read-only and with its owners mapped by the user namespace: the image's
// root is the box's root there. The disk does not change.
func mountIDMapped(from, to, userPin string) error {
	ns, err := os.Open(userPin)
	if err != nil {
		return err
	}
	defer ns.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("cannot open the image %s: %w", from, err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{
		Attr_set:  unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		Userns_fd: uint64(ns.Fd()),
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("the file system of %s cannot be mounted with mapped owners (%w): "+
			"boxes need Linux 5.19 or later and an image directory on ext4, xfs or btrfs", from, err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("cannot mount the image: %w", err)
	}
	return nil
}

// mountOverlay mounts the layers by file descriptor, because a box can read the options of its root in
// /proc/self/mountinfo, and must not see paths of the host. With these options an upper directory contains no path or
// handle of another layer, so that it can become a layer itself.
func (l Layers) mountOverlay(lowers []string) error {
	var paths []string
	for _, dir := range append([]string{l.Upper, l.Work}, lowers...) {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		paths = append(paths, fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	opts := []string{
		"upperdir=" + paths[0], "workdir=" + paths[1], "lowerdir=" + strings.Join(paths[2:], ":"), "redirect_dir=off", "metacopy=off", "index=off",
	}
	flags := uintptr(unix.MS_NODEV | unix.MS_NOSUID)
	if l.SetUserID {
		flags = unix.MS_NODEV
	}
	err := unix.Mount("overlay", l.Root, "overlay", flags, strings.Join(opts, ","))
	if err != nil {
		return fmt.Errorf("cannot mount the box's root (%w): boxes need overlayfs and a state directory on ext4, xfs or btrfs", err)
	}
	return nil
}

// Unmount removes all mounts at or below a directory from the host, last mounted first.
func Unmount(dir string) error {
	mounts, err := MountsBelow(dir)
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) {
		err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("cannot unmount %s: %w", m, err)
		}
	}
	return nil
}

// MountsBelow lists the mount points at or below a directory in mount order.
func MountsBelow(dir string) ([]string, error) {
	data, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var found []string
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if at := unescape.Replace(fields[4]); at == dir || strings.HasPrefix(at, dir+"/") {
			found = append(found, at)
		}
	}
	return found, nil
}

package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"boxgate/launcher"
)

// readOnlyBundle is where a container with an unchangeable root file system has its certificates: the runtime can make mount points in
// /dev, which is a file system of the container's own.
const readOnlyBundle = "/dev/boxgate-ca-bundle.pem"

// mountedBundle is the name in the container's directory of the file that is mounted there.
const mountedBundle = "ca-bundle.pem"

// install makes the container trust a CA: in the stores of its root file system, and by variables. If the root cannot be written to,
// variables alone name a bundle that is mounted. It returns the identity of the root with the stores, "" for a mounted bundle.
func (b *bundle) install(dir string, ca, extra []byte) (files string, err error) {
	root, err := openRoot(b.spec.Root.Path)
	if err != nil {
		return "", fmt.Errorf("the container's root: %w", err)
	}
	defer root.Close()
	at := fmt.Sprintf("/proc/self/fd/%d", root.Fd())
	err = launcher.InstallCA(at, 0, ca, extra)
	if err == nil {
		b.trust(launcher.BundlePath)
		return identity(at)
	}
	if !errors.Is(err, unix.EROFS) {
		return "", fmt.Errorf("installing the CA: %w", err)
	}
	public, err := launcher.PublicRoots()
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, mountedBundle)
	if err := os.WriteFile(file, append(append(public, ca...), extra...), 0o644); err != nil {
		return "", err
	}
	b.mountOver(readOnlyBundle, file)
	b.trust(readOnlyBundle)
	return "", nil
}

// openRoot opens a root file system without the mounts inside it, its devices and its programs. Links in it, which an image may have
// made, are resolved within it by [launcher.InstallCA]. A file system that is only mounted read-only for the container can be written to.
func openRoot(path string) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, err
	}
	tree := os.NewFile(uintptr(fd), "root")
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY, Attr_set: unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return nil, errors.Join(err, tree.Close())
	}
	return tree, nil
}

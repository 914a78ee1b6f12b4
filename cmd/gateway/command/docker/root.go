package docker

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"boxgate/launcher"
)

// openRoot opens the root file system of a container without anything that is mounted in it: no link that a container has made
// leads from there to a directory of the host. What is written belongs to the container's root, whose ID outside is returned.
func openRoot(pid int) (root *os.File, owner int, err error) {
	if owner, err = rootOf(pid); err != nil {
		return nil, 0, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends in the container's mount namespace
		root, err = cloneRoot(pid)
	}()
	<-done
	return root, owner, err
}

func cloneRoot(pid int) (*os.File, error) {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return nil, err
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return nil, err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, err
	}
	tree := os.NewFile(uintptr(fd), "root")
	// With --read-only the mount is, but not the file system below it. Devices in it would be the host's.
	attr := unix.MountAttr{
		Attr_clr: unix.MOUNT_ATTR_RDONLY,
		Attr_set: unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC,
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return nil, errors.Join(err, tree.Close())
	}
	return tree, nil
}

// rootOf is what user 0 of a process's user namespace is outside.
func rootOf(pid int) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "0" {
			return strconv.Atoi(f[1])
		}
	}
	return 0, errors.New("the container has no root user")
}

// install writes the CA into the stores of a container that runs, and, if it waits, that it may begin.
func install(c container, ca, roots []byte, begin bool) error {
	root, owner, err := openRoot(c.State.Pid)
	if err != nil {
		return fmt.Errorf("the container's files: %w", err)
	}
	defer root.Close()
	at := fmt.Sprintf("/proc/self/fd/%d", root.Fd())
	if err := launcher.InstallCA(at, owner, ca, roots); err != nil {
		return fmt.Errorf("installing the CA: %w", err)
	}
	if !begin {
		return nil
	}
	return launcher.PutFile(at, owner, readyFile)
}

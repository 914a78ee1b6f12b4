package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"boxgate/host/sandboxns"
	"boxgate/launcher"
)

// openRoot opens the root file system of a container without the mounts inside it, so that no link made by the container
// leads to a directory of the host. It also returns the host's ID of the container's root user, to own new files. The
// process is opened before again inspects the container and checked to be alive afterwards. A further check makes sure
// that its PID was not reused while Docker considers the old process alive.
func openRoot(c container, again func() (container, error)) (root *os.File, owner int, err error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d", c.State.Pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, errRestarted
	}
	process := os.NewFile(uintptr(fd), "process")
	defer process.Close()
	now, err := again()
	if err != nil {
		return nil, 0, err
	}
	if now.ID != c.ID || now.State.Pid != c.State.Pid || c.State.Pid <= 0 {
		return nil, 0, errRestarted
	}
	if err := sandboxns.IsFirst(func(file string) ([]byte, error) { return readIn(process, file) }, c.ID, c.State.StartedAt); err != nil {
		return nil, 0, err
	}
	if owner, err = rootOf(process); err != nil {
		return nil, 0, err
	}
	root, err = CloneRoot(process)
	return root, owner, err
}

// CloneRoot clones the root of the mount namespace of a process, without the mounts inside it, its devices and its programs. process is
// its open directory in /proc, which the caller has found to be of the container. It fails if that namespace or its files are the
// host's. The root is the one that the process has made: one that may change its mounts can have others there than its engine.
func CloneRoot(process *os.File) (root *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends in the container's mount namespace
		root, err = cloneRoot(process)
	}()
	<-done
	return root, err
}

// errRestarted is returned if the container changed during the operation.
var errRestarted = errors.New("the container was restarted or ended just now: try again")

// errHost is returned if the process uses the host's own files.
var errHost = errors.New("the process that Docker names has the files of this host, not those of a container (as with virtual machines)")

// openIn opens a file in the /proc directory of a process and fails if the process has ended.
func openIn(process *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(process.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errRestarted
	}
	return os.NewFile(uintptr(fd), name), nil
}

// readIn reads a file in the /proc directory of a process and fails if the process has ended.
func readIn(process *os.File, name string) ([]byte, error) {
	f, err := openIn(process, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, errRestarted
	}
	return data, nil
}

// isSameAsAny reports whether an open file is the same as the file at one of the paths. Paths of the host's first process are
// skipped if this process may not access them, as in some containers; any other failure is an error.
func isSameAsAny(fd int, paths ...string) (bool, error) {
	var of, st unix.Stat_t
	if err := unix.Fstat(fd, &of); err != nil {
		return false, err
	}
	for _, path := range paths {
		err := unix.Stat(path, &st)
		if mayNotLook(path, err) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("%s: %w", path, err)
		}
		if st.Dev == of.Dev && st.Ino == of.Ino {
			return true, nil
		}
	}
	return false, nil
}

// mayNotLook reports whether err means that this process may not inspect the host's first process.
func mayNotLook(path string, err error) bool {
	return strings.HasPrefix(path, "/proc/1/") && errors.Is(err, unix.EACCES)
}

// cloneRoot clones the root of the mount namespace of a process. It fails if that namespace or its files belong to
// this process or to the host. Afterwards the calling thread is in that namespace.
func cloneRoot(process *os.File) (*os.File, error) {
	ns, err := openIn(process, "ns/mnt")
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if same, err := isSameAsAny(int(ns.Fd()), "/proc/thread-self/ns/mnt", "/proc/1/ns/mnt"); err != nil || same {
		return nil, cmp.Or(err, errHost)
	}
	var roots []*os.File
	for _, path := range []string{"/", "/proc/1/root"} {
		root, err := os.Open(path)
		if mayNotLook(path, err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer root.Close()
		roots = append(roots, root)
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return nil, err
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return nil, err
	}
	for _, root := range roots {
		if same, err := isSameAsAny(int(root.Fd()), "/"); err != nil || same {
			return nil, cmp.Or(err, errHost)
		}
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, err
	}
	tree := os.NewFile(uintptr(fd), "root")
	// With --read-only, the mount is read-only but the file system below is not. Its device nodes would belong to the
	// host.
	attr := unix.MountAttr{
		Attr_clr: unix.MOUNT_ATTR_RDONLY,
		Attr_set: unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC,
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return nil, errors.Join(err, tree.Close())
	}
	return tree, nil
}

// rootOf returns the host's ID of user 0 in the process's user namespace.
func rootOf(process *os.File) (int, error) {
	data, err := readIn(process, "uid_map")
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

// install writes the CA into the certificate stores of a running container; with renew, only if it is there already, which it
// reports. With a token, which is that of a waiting container, it also creates the file that lets the container's command start.
func install(ctx context.Context, c container, ca, roots []byte, token string, renew bool) (installed bool, err error) {
	root, owner, err := openRoot(c, func() (container, error) { return inspect[container](ctx, "container", c.ID) })
	if err != nil {
		return false, fmt.Errorf("the container's files: %w", err)
	}
	defer root.Close()
	at := fmt.Sprintf("/proc/self/fd/%d", root.Fd())
	if renew {
		if trusts, err := launcher.TrustsCA(at, owner, ca); err != nil || !trusts {
			return false, err
		}
	}
	if err := launcher.InstallCA(at, owner, ca, roots); err != nil {
		return false, fmt.Errorf("installing the CA: %w", err)
	}
	if token == "" {
		return true, nil
	}
	return true, launcher.PutFile(at, owner, readyFile+token)
}

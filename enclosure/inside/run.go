package inside

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Most daemons have their sockets below /run, and create them again when they restart. So the command gets an empty /run,
// with the files to keep, and the directories that programs expect there.

// runOptions limit how much the command can write there.
const runOptions = "mode=0755,size=20%,nr_inodes=100k"

// clonedTree is a file or directory of the host's /run, held open while /run is covered.
type clonedTree struct {
	path string
	fd   int
	dir  bool
}

func hideRun(s Spec) error {
	kept, err := cloneTrees(append(s.KeepRun, s.AllowedSockets...))
	if err != nil {
		return err
	}
	links := linksIn("/run")
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, runOptions); err != nil {
		return err
	}
	for path, target := range links {
		if err := os.Symlink(target, path); err != nil {
			return err
		}
	}
	if err := errors.Join(os.MkdirAll(Private, 0o755), os.WriteFile(emptyFile, nil, 0), os.Chmod("/run", 0o755)); err != nil {
		return err
	}
	if err := makeUserDir(s); err != nil {
		return err
	}
	if err := errors.Join(os.Mkdir("/run/lock", 0o755), os.Chmod("/run/lock", 0o1777)); err != nil {
		return err
	}
	for _, k := range kept {
		if err := k.mount(); err != nil {
			return fmt.Errorf("%s: %w", k.path, err)
		}
	}
	return nil
}

// makeUserDir makes the usual directory of XDG_RUNTIME_DIR.
func makeUserDir(s Spec) error {
	dir := filepath.Join("/run/user", strconv.Itoa(s.UID))
	return errors.Join(os.MkdirAll("/run/user", 0o755), os.Mkdir(dir, 0o700), os.Chown(dir, s.UID, s.GID))
}

// linksIn returns the symbolic links in a directory.
func linksIn(dir string) map[string]string {
	out := map[string]string{}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if target, err := os.Readlink(path); err == nil {
			out[path] = target
		}
	}
	return out
}

func cloneTrees(paths []string) ([]clonedTree, error) {
	var out []clonedTree
	for _, path := range paths {
		if !isBelow(path, "/run") {
			continue
		}
		info, err := os.Lstat(path)
		if errors.Is(err, os.ErrNotExist) || err == nil && info.Mode().Type() == os.ModeSymlink {
			continue // links are copied anyway
		}
		if err != nil {
			return nil, err
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		out = append(out, clonedTree{path, fd, info.IsDir()})
	}
	return out, nil
}

// mount mounts the tree at its original path.
func (k clonedTree) mount() error {
	defer unix.Close(k.fd)
	if err := makeMountPoint(k.path, k.dir); err != nil {
		return err
	}
	return unix.MoveMount(k.fd, "", unix.AT_FDCWD, k.path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// makeMountPoint makes an empty file or directory, unless it exists.
func makeMountPoint(path string, dir bool) error {
	if dir {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// isBelow reports whether a path is in a directory.
func isBelow(path, dir string) bool { return strings.HasPrefix(path, dir+"/") }

// showFile replaces a file of the host by a file with other content.
func showFile(f File, i int) error {
	if isBelow(f.Path, "/run") {
		if err := makeMountPoint(f.Path, false); err != nil {
			return err
		}
		return os.WriteFile(f.Path, f.Content, 0o644)
	}
	own := filepath.Join(Private, "file-"+strconv.Itoa(i))
	if err := os.WriteFile(own, f.Content, 0o644); err != nil {
		return err
	}
	if err := unix.Mount(own, f.Path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", f.Path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
}

package worker

import (
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// fileSystems are the types of file systems that hold files of a box: its root, and memory.
var fileSystems = []int64{unix.OVERLAYFS_SUPER_MAGIC, unix.TMPFS_MAGIC}

// errSpecial refuses files that the kernel generates, as in procfs: below /proc/sys it shows each process its own
// namespaces, which for a worker are the host's.
var errSpecial = &Failure{Errno: unix.EACCES, Message: "not a file of the box but of the kernel, as in /proc and /sys: only commands in the box can use it"}

// holdsFiles fails if an open file is in a file system of the kernel.
func holdsFiles(f *os.File) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return err
	}
	if !slices.Contains(fileSystems, st.Type) {
		return errSpecial
	}
	return nil
}

// statPath describes the file at a path. It opens it only with O_PATH.
func statPath(path string, follow bool) (fs.FileInfo, error) {
	flags := unix.O_PATH
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := holdsFiles(f); err != nil {
		return nil, err
	}
	return f.Stat()
}

// openDir opens a directory for reading.
func openDir(path string, flags int) (*os.File, error) {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|flags, 0)
	if err != nil {
		return nil, err
	}
	if err := holdsFiles(dir); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// entriesOf returns the entries of a directory, sorted. A link is not followed.
func entriesOf(path string) ([]fs.DirEntry, error) {
	dir, err := openDir(path, unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

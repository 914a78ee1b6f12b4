package worker

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"boxgate/launcher/files"
)

func stat(path string, follow bool) (Answer, error) {
	fi, err := statPath(path, follow)
	if err != nil {
		return Answer{}, err
	}
	info := infoOf(fi)
	return Answer{Info: &info}, nil
}

// infoOf converts the result of stat(2).
func infoOf(fi fs.FileInfo) Info {
	info := Info{Name: []byte(fi.Name()), Type: "other", IsDir: fi.IsDir(), Size: fi.Size(), Mode: uint32(fi.Mode().Perm()), Time: fi.ModTime().UnixNano()}
	switch {
	case fi.IsDir():
		info.Type = "directory"
	case fi.Mode().IsRegular():
		info.Type = "file"
	case fi.Mode()&fs.ModeSymlink != 0:
		info.Type = "symlink"
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		info.Inode = st.Ino
	}
	return info
}

// maxNames bounds the total length of names in a list, in bytes: the answer is held in memory.
const maxNames = 4 << 20

// list reads up to most entries of a directory of any size: the first ones in the directory's own order, sorted.
func list(path string, most int) (Answer, error) {
	dir, err := openDir(path, 0)
	if err != nil {
		return Answer{}, err
	}
	defer dir.Close()
	var a Answer
	for bytes := 0; ; {
		entries, err := dir.ReadDir(256)
		for _, e := range entries {
			if bytes += len(e.Name()); len(a.Entries) >= most || bytes > maxNames {
				a.Truncated = true
				return a, nil
			}
			if info, err := entry(path, e.Name()); err == nil { // otherwise it has been removed
				a.Entries = append(a.Entries, info)
			}
		}
		if errors.Is(err, io.EOF) {
			slices.SortFunc(a.Entries, func(a, b Info) int { return strings.Compare(string(a.Name), string(b.Name)) })
			return a, nil
		}
		if err != nil {
			return Answer{}, err
		}
	}
}

// entry describes one entry of a directory.
func entry(dir, name string) (Info, error) {
	path := dir + "/" + name
	fi, err := os.Lstat(path)
	if err != nil {
		return Info{}, err
	}
	info := infoOf(fi)
	if info.Type == "symlink" {
		if to, err := statPath(path, true); err == nil {
			info.IsDir, info.Size = to.IsDir(), to.Size()
		}
	}
	return info, nil
}

func makeDir(path string, parents bool) error {
	if parents {
		return os.MkdirAll(path, 0o755)
	}
	return os.Mkdir(path, 0o755)
}

// remove removes a file or an empty directory; if recursive, also a directory with everything below it. Links are removed,
// not followed.
func remove(path string, recursive bool) error {
	dir, name := split(path)
	if name == "" || name == "." || name == ".." {
		return &Failure{Errno: unix.EINVAL, Message: "the path must end in the name of what to remove"}
	}
	parent, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer parent.Close()
	fd := int(parent.Fd())
	err = unix.Unlinkat(fd, name, 0)
	if err == nil || !errors.Is(err, unix.EISDIR) {
		return err
	}
	err = unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
	if recursive && (errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST)) {
		return files.RemoveEntry(context.Background(), parent, name)
	}
	return err
}

// split splits a path before its last name. Unlike path.Split with path.Clean it keeps "..", which may follow a link.
func split(path string) (dir, name string) {
	path = strings.TrimRight(path, "/")
	i := strings.LastIndexByte(path, '/')
	return path[:i+1], path[i+1:]
}

// Package files handles files that boxes and images may have created: it follows paths inside a root, removes trees of any
// shape, and replaces and locks the launcher's own files.
package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// WriteJSON atomically replaces a file with the JSON of v.
func WriteJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(data, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Lock takes an exclusive lock across processes, waiting for it until ctx ends. waiting is called once if another process
// holds it. The lock is released when the process ends, in whatever way.
func Lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the lock: %w", err)
	}
	for first := true; ; first = false {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && isAt(f, path) {
			return func() { f.Close() }, nil
		}
		if err == nil { // its holder has removed the file: others lock the new one
			f.Close()
			return Lock(ctx, path, waiting)
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			f.Close()
			return nil, fmt.Errorf("cannot lock %s: %w", path, err)
		}
		if first && waiting != nil {
			waiting()
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond): // flock cannot both wait and be cancelled
		}
	}
}

// isAt reports whether a path still names an open file.
func isAt(f *os.File, path string) bool {
	own, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(own, now)
}

// maxLinks is how many symbolic links a path may have, as in the kernel.
const maxLinks = 40

// Resolve resolves the symbolic links of a path like a process whose root is that directory: an absolute link starts again
// at the root and ".." stops there. The result has no links, may not exist yet, and is relative to the root. os.Root alone
// refuses absolute links, which are common in images; with links resolved here it only gets plain paths, and still catches
// any mistake of this function.
func Resolve(root *os.Root, name string) (string, error) {
	todo := strings.Split(path.Clean("/"+name), "/")
	done := "."
	for links := 0; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		target, err := linkTarget(root, next)
		if err != nil {
			return "", err
		}
		if target == "" {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s: too many levels of symbolic links", name)
		}
		if path.IsAbs(target) {
			done = "."
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return done, nil
}

// linkTarget returns the target of a symbolic link; "" for everything else, including missing files.
func linkTarget(root *os.Root, name string) (string, error) {
	fi, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if fi.Mode()&fs.ModeSymlink == 0 {
		return "", nil
	}
	return root.Readlink(name)
}

// ResolveParent resolves all of a path except its last element.
func ResolveParent(root *os.Root, name string) (string, error) {
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" {
		return ".", nil
	}
	dir, err := Resolve(root, path.Dir(clean))
	if err != nil {
		return "", err
	}
	return path.Join(dir, path.Base(clean)), nil
}

// Usage is the disk usage of a tree.
type Usage struct {
	Bytes  int64
	Inodes int64
	Whole  bool // false: the tree has more entries or levels than were counted
}

// The tree may have been made by a box, and may be changing. Entries beyond these limits are not counted.
const (
	maxUsageDepth   = 256 // one descriptor per level
	maxUsageEntries = 4 << 20
)

// DiskUsage adds up everything below a directory, which may belong to a running box: it follows no link, crosses no mount
// point, and uses bounded descriptors and memory. A file with several names counts once if all of them are in the tree.
// Entries that disappear during the call are not counted.
func DiskUsage(ctx context.Context, path string) (Usage, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return Usage{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	w := usageWalk{ctx: ctx, whole: true}
	err = w.dir(os.NewFile(uintptr(fd), path), 1)
	return Usage{Bytes: w.blocks * 512, Inodes: w.inodes, Whole: w.whole}, err
}

type usageWalk struct {
	ctx     context.Context
	blocks  int64
	inodes  int64
	entries int
	whole   bool
}

// dir counts the entries of a directory, and closes it.
func (w *usageWalk) dir(d *os.File, depth int) error {
	defer d.Close()
	for {
		names, err := d.Readdirnames(256)
		for _, name := range names {
			if err := w.entry(d, name, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) { // ENOENT: the directory was removed
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (w *usageWalk) entry(d *os.File, name string, depth int) error {
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	if w.entries++; w.entries > maxUsageEntries {
		w.whole = false
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil // it has been removed
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		w.blocks += st.Blocks / max(int64(st.Nlink), 1)
		w.inodes++
		return nil
	}
	w.blocks += st.Blocks
	w.inodes++
	if depth == maxUsageDepth {
		w.whole = false
		return nil
	}
	below, err := openBelow(d, name)
	if err != nil {
		return nil // it has been removed or replaced
	}
	return w.dir(below, depth+1)
}

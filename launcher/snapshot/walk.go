package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"golang.org/x/sys/unix"
)

// maxDepth is how deep directories may be nested: each level needs a descriptor while it is read.
const maxDepth = 256

// errTooDeep is reported to the client that requested the snapshot.
var errTooDeep = fmt.Errorf("the box has directories nested more than %d deep, which a snapshot cannot hold", maxDepth)

// entry is one name in a directory.
type entry struct {
	name string // "" for the top
	stat unix.Stat_t
}

func (e entry) regular() bool { return e.stat.Mode&unix.S_IFMT == unix.S_IFREG }

func (e entry) isDir() bool { return e.stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// whiteout reports whether overlayfs created the entry to hide a file of a lower layer.
func (e entry) whiteout() bool { return e.stat.Mode&unix.S_IFMT == unix.S_IFCHR && e.stat.Rdev == 0 }

// visitor receives the entries of a tree.
type visitor struct {
	entry      func(dir *os.File, e entry) error // called for the top directory first, and for a directory before its entries
	leave      func() error                      // called after the entries of a directory; may be nil
	exclude    string                            // an entry of the top directory to skip; "": no entry
	changing   bool                              // the tree may change: vanished entries are skipped
	maxEntries int64                             // maximum number of entries
	seen       *int64                            // set by walk
}

// walk visits a tree.
func walk(ctx context.Context, top *os.File, v visitor) error {
	e := entry{}
	v.seen = new(int64)
	if err := unix.Fstat(int(top.Fd()), &e.stat); err != nil {
		return err
	}
	if err := v.entry(top, e); err != nil {
		return err
	}
	return v.visitDir(ctx, top, ".", e.stat.Dev, 0)
}

// visitDir visits the entries of a directory.
func (v visitor) visitDir(ctx context.Context, parent *os.File, name string, dev uint64, depth int) error {
	if depth == maxDepth {
		return errTooDeep
	}
	dir, err := openAt(parent, name, unix.O_DIRECTORY)
	if err != nil {
		return v.ignoreVanished(err)
	}
	defer dir.Close()
	for n, err := range namesIn(dir) {
		if err != nil {
			return v.ignoreVanished(err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if depth == 0 && n == v.exclude {
			continue
		}
		if err := v.visit(ctx, dir, n, dev, depth); err != nil {
			return err
		}
	}
	if v.leave == nil {
		return nil
	}
	return v.leave()
}

// namesPerRead is how many names of a directory are held in memory: a box may have created millions.
const namesPerRead = 1024

// namesIn yields the names in a directory. After an error it stops.
func namesIn(dir *os.File) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for {
			names, err := dir.Readdirnames(namesPerRead)
			for _, n := range names {
				if !yield(n, nil) {
					return
				}
			}
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield("", err)
				return
			}
		}
	}
}

// visit visits one entry and everything below it.
func (v visitor) visit(ctx context.Context, dir *os.File, name string, dev uint64, depth int) error {
	if *v.seen++; *v.seen > v.maxEntries {
		return fmt.Errorf("the box has written more than %d files and directories, which a snapshot cannot hold", v.maxEntries)
	}
	e := entry{name: name}
	if err := unix.Fstatat(int(dir.Fd()), name, &e.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return v.ignoreVanished(err)
	}
	if e.stat.Dev != dev {
		return fmt.Errorf("something is mounted at %q", name)
	}
	if err := v.entry(dir, e); err != nil || !e.isDir() {
		return err
	}
	return v.visitDir(ctx, dir, name, dev, depth+1)
}

// ignoreVanished ignores that an entry has vanished or been replaced, if the tree may change.
func (v visitor) ignoreVanished(err error) error {
	for _, gone := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ESTALE} {
		if v.changing && errors.Is(err, gone) {
			return nil
		}
	}
	return err
}

// openAt opens an entry of a directory for reading. It follows no link, crosses no mount point and does not block on pipes.
func openAt(dir *os.File, name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_NOATIME | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	}
	for {
		fd, err := unix.Openat2(int(dir.Fd()), name, &how)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
	}
}

// linkPath names an entry of an open directory for calls that take only paths and do not follow links.
func linkPath(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// readLink returns the target of a symbolic link.
func readLink(dir *os.File, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

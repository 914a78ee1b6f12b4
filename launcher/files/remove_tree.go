package files

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// maxOpenDirs is how deep a removal goes with one descriptor per level; deeper directories are lifted first.
	maxOpenDirs = 32
	// maxLifted is how many lifted directories are remembered by name; others are found again by reading.
	maxLifted = 64
)

// RemoveTree removes a path; a missing one is not an error. The tree may have been made by a box, and have any shape:
// os.RemoveAll holds one descriptor per level, so that a box could make a tree that cannot be removed, and exhaust the
// descriptors of this process. RemoveTree renames deep directories to the top of the tree, so that descriptors and memory
// are bounded and no path is ever longer than one name.
//
// Links are removed, not followed, and mount points are not entered. Entries that cannot be removed stay, with their parent
// directories, and are reported in the error; the rest is still removed. When ctx ends first the error is ctx's, and a
// second call continues from there. No one else may move directories of the tree during the call.
func RemoveTree(ctx context.Context, path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	return RemoveEntry(ctx, parent, filepath.Base(path))
}

// RemoveEntry is RemoveTree for an entry of an open directory.
func RemoveEntry(ctx context.Context, parent *os.File, name string) error {
	for r := (treeRemoval{ctx: ctx}); ; {
		err := unlink(parent, name)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !notEmpty(err) {
			return fmt.Errorf("cannot remove %q: %w", name, err)
		}
		before := r.done
		r.firstError = nil
		if err := r.pass(parent, name); err != nil {
			return err
		}
		if r.done == before {
			return fmt.Errorf("cannot remove %q: %w", name, cmp.Or(r.firstError, err))
		}
	}
}

// treeRemoval is one tree being removed.
type treeRemoval struct {
	ctx        context.Context
	top        *os.File
	lifted     []string // directories renamed to top and not removed yet
	done       int      // entries removed or lifted
	firstError error    // the first error of this pass that prevented a removal
}

// pass removes the entries of the top directory, including directories that it lifts there. An error is ctx's.
func (r *treeRemoval) pass(parent *os.File, name string) error {
	top, err := openBelow(parent, name)
	if err != nil {
		r.recordError(name, err)
		return nil
	}
	defer top.Close()
	r.top = top
	if err := r.removeEntries(top, 1); err != nil {
		return err
	}
	for len(r.lifted) > 0 {
		last := len(r.lifted) - 1
		next := r.lifted[last]
		r.lifted = r.lifted[:last]
		if err := r.remove(top, next, 1); err != nil {
			return err
		}
	}
	return nil
}

// remove removes an entry of a directory if it can; depth is how many directories of the tree are open. An error is ctx's.
func (r *treeRemoval) remove(dir *os.File, name string, depth int) error {
	for {
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		err := unlink(dir, name)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			r.done++
			return nil
		case !notEmpty(err):
			r.recordError(name, err)
			return nil
		case depth == maxOpenDirs:
			r.lift(dir, name)
			return nil
		}
		before := r.done
		if err := r.removeDir(dir, name, depth); err != nil {
			return err
		}
		if r.done == before {
			r.recordError(name, err)
			return nil
		}
	}
}

func (r *treeRemoval) removeDir(parent *os.File, name string, depth int) error {
	dir, err := openBelow(parent, name)
	if err != nil {
		r.recordError(name, err)
		return nil
	}
	defer dir.Close()
	return r.removeEntries(dir, depth+1)
}

func (r *treeRemoval) recordError(name string, err error) {
	if r.firstError == nil {
		r.firstError = fmt.Errorf("%q: %w", name, err)
	}
}

// removeEntries reads a directory once and removes the entries. It reads only names, not types: a directory is recognized when it
// cannot be unlinked.
func (r *treeRemoval) removeEntries(dir *os.File, depth int) error {
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			if err := r.remove(dir, name, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			r.recordError(dir.Name(), err)
			return nil
		}
	}
}

// lift renames a directory to the top of the tree under an unused name. It creates no directory for that, which would fail
// on a full disk. If the top directory cannot hold another name, it can after the rest has been removed.
func (r *treeRemoval) lift(dir *os.File, name string) {
	for {
		fresh := rand.Text()
		err := unix.Renameat2(int(dir.Fd()), name, int(r.top.Fd()), fresh, unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, unix.EEXIST), errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			r.recordError(name, err)
			return
		}
		r.done++
		if len(r.lifted) < maxLifted {
			r.lifted = append(r.lifted, fresh)
		}
		return
	}
}

func notEmpty(err error) bool { return errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) }

// unlink removes a file or an empty directory. A mount point is always busy.
func unlink(dir *os.File, name string) error {
	err := unlinkat(dir, name, 0)
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	if derr := unlinkat(dir, name, unix.AT_REMOVEDIR); !errors.Is(derr, unix.ENOTDIR) {
		return derr
	}
	return err
}

func unlinkat(dir *os.File, name string, flags int) error {
	for {
		if err := unix.Unlinkat(int(dir.Fd()), name, flags); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// openBelow opens a subdirectory. It follows no link and crosses no mount point.
func openBelow(parent *os.File, name string) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	}
	for {
		fd, err := unix.Openat2(int(parent.Fd()), name, &how)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return nil, err
		}
	}
}

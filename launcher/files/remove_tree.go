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
	// maxOpenDirs is how deep a removal goes with a descriptor for each level; what lies deeper is lifted first.
	maxOpenDirs = 32
	// maxLifted is how many lifted directories are remembered by name; more are found again by reading.
	maxLifted = 64
)

// RemoveTree removes whatever lies at a path, which may be nothing. The tree may have been made by a box, and be of any
// shape: os.RemoveAll holds one descriptor for each level, so that a box could make a tree nobody can remove, and have
// the attempt eat the descriptors of this process. Here a directory found deep down is renamed to the top of the tree,
// so that descriptors and memory have a bound and no path is ever longer than one name.
//
// Links are removed, not followed, and nothing is removed through a mount. What cannot be removed stays, with the
// directories it is in, and is the error; the rest goes all the same. When ctx ends first the error is ctx's; what is
// gone by then is gone, and a second call goes on from there. Nothing else may move directories of the tree meanwhile.
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

// RemoveEntry is removeTree for an entry of an open directory.
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
		r.kept = nil
		if err := r.pass(parent, name); err != nil {
			return err
		}
		if r.done == before {
			return fmt.Errorf("cannot remove %q: %w", name, cmp.Or(r.kept, err))
		}
	}
}

// treeRemoval is one tree being removed.
type treeRemoval struct {
	ctx    context.Context
	top    *os.File
	lifted []string // directories renamed to top that wait for their removal
	done   int      // entries removed or lifted
	kept   error    // the first reason of this pass why an entry stays
}

// pass removes what it finds in the top directory, and what it lifted there meanwhile. Its error is ctx's.
func (r *treeRemoval) pass(parent *os.File, name string) error {
	top, err := openBelow(parent, name)
	if err != nil {
		r.keep(name, err)
		return nil
	}
	defer top.Close()
	r.top = top
	if err := r.empty(top, 1); err != nil {
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

// remove removes an entry of a directory if it can; depth is how many directories of the tree are open. Its error is
// ctx's.
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
			r.keep(name, err)
			return nil
		case depth == maxOpenDirs:
			r.lift(dir, name)
			return nil
		}
		before := r.done
		if err := r.enter(dir, name, depth); err != nil {
			return err
		}
		if r.done == before {
			r.keep(name, err)
			return nil
		}
	}
}

func (r *treeRemoval) enter(parent *os.File, name string, depth int) error {
	dir, err := openBelow(parent, name)
	if err != nil {
		r.keep(name, err)
		return nil
	}
	defer dir.Close()
	return r.empty(dir, depth+1)
}

func (r *treeRemoval) keep(name string, err error) {
	if r.kept == nil {
		r.kept = fmt.Errorf("%q: %w", name, err)
	}
}

// empty removes what reading a directory once shows. Names come alone, without asking what they are: a directory shows
// itself when it cannot be unlinked.
func (r *treeRemoval) empty(dir *os.File, depth int) error {
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
			r.keep(dir.Name(), err)
			return nil
		}
	}
}

// lift renames a directory to the top of the tree under a name that nothing there has. It makes no directory for it,
// which a full disk would refuse; should the top have no room for one more name, it has once the rest is gone.
func (r *treeRemoval) lift(dir *os.File, name string) {
	for {
		fresh := rand.Text()
		err := unix.Renameat2(int(dir.Fd()), name, int(r.top.Fd()), fresh, unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, unix.EEXIST), errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			r.keep(name, err)
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

// unlink removes a file or an empty directory. A mount point is busy, whatever is mounted there.
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

// openBelow opens a directory in another one, in the same mount and through no link.
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

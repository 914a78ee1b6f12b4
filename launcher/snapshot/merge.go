package snapshot

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"boxgate/launcher/files"
	"boxgate/launcher/namespace"
)

// Merge makes one layer of several, the lowest first, in the directory to, which must not exist. Over the image it means
// the same as all of them. It shares the files with them, which nobody ever writes to. grow is asked before n more bytes are
// written, and its error ends the merge; nil: nothing bounds them. When Merge fails, what it made is left for the caller to remove.
func Merge(ctx context.Context, image string, layers []string, to string, grow func(n int64) error) (Report, error) {
	for _, dir := range []string{to, Tree(to)} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return Report{}, err
		}
	}
	dst, err := os.Open(to)
	if err != nil {
		return Report{}, err
	}
	defer dst.Close()
	root, err := os.Open(image)
	if err != nil {
		return Report{}, err
	}
	defer root.Close()
	for _, layer := range layers {
		src, err := os.Open(layer)
		if err == nil {
			err = merge{ctx, Terms{Grow: grow}.room}.directory(src, dst, treeDir, below{image: root})
			src.Close()
		}
		if err != nil {
			return Report{}, err
		}
	}
	report, err := measure(ctx, Tree(to))
	return report, errors.Join(err, syncDisk(to))
}

// measure adds up a tree.
func measure(ctx context.Context, tree string) (r Report, err error) {
	top, err := os.Open(tree)
	if err != nil {
		return r, err
	}
	defer top.Close()
	var s sizes
	err = walk(ctx, top, visitor{most: math.MaxInt64, entry: func(_ *os.File, e entry) error {
		s.add(e)
		return nil
	}})
	return Report{Size: s.bytes, Files: s.entries}, err
}

// merge is one merge under way.
type merge struct {
	ctx  context.Context
	room func(n int64) error // asked before n more bytes are written
}

// below is where in the tree an entry is.
type below struct {
	depth int
	// image is the same directory of the image. Where it has none, there is nothing for whiteouts to hide, and overlayfs
	// would show them.
	image *os.File
}

// directory puts a directory over what is there. What is hidden by either stays hidden.
func (m merge) directory(src, dst *os.File, name string, at below) error {
	e := entry{name: name}
	if err := unix.Fstatat(int(src.Fd()), name, &e.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	it, err := describe(src, e, namespace.IDs{})
	if err != nil {
		return err
	}
	if err := m.room(max(entryBytes, e.stat.Blocks*512)); err != nil { // its names are written anew
		return err
	}
	hides := slices.ContainsFunc(it.Attrs, func(a attr) bool { return a.Name == opaque.Name })
	var old entry
	err = unix.Fstatat(int(dst.Fd()), name, &old.stat, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == nil && old.isDir() && !hides:
		_, xerr := attrValue(linkPath(dst, name), opaque.Name)
		hides = xerr == nil
		err = dropAttrs(linkPath(dst, name), opaque.Name)
	case err == nil:
		if !hides { // as the file that it replaces did
			hides, it.Attrs = true, append(it.Attrs, opaque)
		}
		err = errors.Join(files.RemoveEntry(m.ctx, dst, name), unix.Mkdirat(int(dst.Fd()), name, 0o700))
	case errors.Is(err, unix.ENOENT):
		err = unix.Mkdirat(int(dst.Fd()), name, 0o700)
	}
	if err != nil {
		return err
	}
	next := below{depth: at.depth + 1}
	if !hides {
		next.image = at.step(name)
		defer next.image.Close()
	}
	if err := m.into(src, dst, name, next); err != nil {
		return err
	}
	return finish(linkPath(dst, name), it)
}

// step returns a directory of the image, or nil.
func (at below) step(name string) *os.File {
	if at.image == nil {
		return nil
	}
	if at.depth == 0 {
		name = "."
	}
	dir, err := openAt(at.image, name, unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	return dir
}

// opaque is the attribute of a directory with which overlayfs merges no lower one.
var opaque = attr{Name: overlay + "opaque", Value: []byte("y")}

// dropAttrs removes all attributes but one.
func dropAttrs(path, but string) error {
	names, err := attrNames(path)
	for _, name := range names {
		if keep, kerr := keeps(name); kerr == nil && keep && name != but {
			err = errors.Join(err, unix.Lremovexattr(path, name))
		}
	}
	return err
}

// into merges the entries of a directory that both have.
func (m merge) into(src, dst *os.File, name string, at below) error {
	from, err := openAt(src, name, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := openAt(dst, name, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer to.Close()
	if at.depth > maxDepth {
		return errTooDeep
	}
	for n, err := range namesIn(from) {
		if err != nil {
			return err
		}
		if m.ctx.Err() != nil {
			return context.Cause(m.ctx)
		}
		if err := m.one(from, to, n, at); err != nil {
			return err
		}
	}
	return nil
}

// one puts an entry over what is there.
func (m merge) one(src, dst *os.File, name string, at below) error {
	e := entry{name: name}
	if err := unix.Fstatat(int(src.Fd()), name, &e.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if e.isDir() {
		return m.directory(src, dst, name, at)
	}
	if err := files.RemoveEntry(m.ctx, dst, name); err != nil || at.image == nil && e.whiteout() {
		return err
	}
	if err := m.room(entryBytes); err != nil {
		return err
	}
	err := unix.Linkat(int(src.Fd()), name, int(dst.Fd()), name, 0)
	if !errors.Is(err, unix.EMLINK) {
		return err
	}
	return m.duplicate(src, dst, e)
}

// duplicate copies an entry that has as many names as the file system allows.
func (m merge) duplicate(src, dst *os.File, e entry) error {
	it, err := describe(src, e, namespace.IDs{})
	if err != nil {
		return err
	}
	if !e.regular() {
		err = makeNode(dst, it)
	} else {
		err = m.copyFile(src, dst, e)
	}
	if err != nil {
		return err
	}
	return finish(linkPath(dst, e.name), it)
}

func (m merge) copyFile(src, dst *os.File, e entry) error {
	from, err := openAt(src, e.name, 0)
	if err != nil {
		return err
	}
	defer from.Close()
	b := bodies{dir: dst, clone: true, room: m.room}
	to, err := b.create(e.name)
	if err != nil {
		return err
	}
	return errors.Join(b.contents(m.ctx, to, from, e.stat.Size), to.Close())
}

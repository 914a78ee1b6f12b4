package snapshot

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"boxgate/launcher/files"
	"boxgate/launcher/namespace"
)

// Merge merges layers, the lowest first, into one layer in the directory to, which must not exist. Over the image it is
// equivalent to all of them. It shares their files, which are never written to. grow is called before n more bytes are
// written, and its error ends the merge; nil: unlimited. When Merge fails, the caller removes to.
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
			err = merge{ctx, Terms{Grow: grow}.callGrow}.mergeDir(src, dst, treeDir, position{image: root})
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
	err = walk(ctx, top, visitor{maxEntries: math.MaxInt64, entry: func(_ *os.File, e entry) error {
		s.add(e)
		return nil
	}})
	return Report{Size: s.bytes, Files: s.entries}, err
}

// merge is a running merge.
type merge struct {
	ctx  context.Context
	grow func(n int64) error // called before n more bytes are written
}

// position is the position of an entry in the tree.
type position struct {
	depth int
	// image is the corresponding directory of the image; nil if it does not exist: then whiteouts have nothing to hide, and
	// overlayfs would show them.
	image *os.File
}

// mergeDir merges a directory over an existing entry. Entries hidden by either stay hidden.
func (m merge) mergeDir(src, dst *os.File, name string, at position) error {
	e := entry{name: name}
	if err := unix.Fstatat(int(src.Fd()), name, &e.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	it, err := describe(src, e, namespace.IDs{})
	if err != nil {
		return err
	}
	if err := m.grow(max(entryBytes, e.stat.Blocks*512)); err != nil { // its names are written again
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
		if !hides { // like the file that it replaces
			hides, it.Attrs = true, append(it.Attrs, opaque)
		}
		err = errors.Join(files.RemoveEntry(m.ctx, dst, name), unix.Mkdirat(int(dst.Fd()), name, 0o700))
	case errors.Is(err, unix.ENOENT):
		err = unix.Mkdirat(int(dst.Fd()), name, 0o700)
	}
	if err != nil {
		return err
	}
	next := position{depth: at.depth + 1}
	if !hides {
		next.image = at.step(name)
		defer next.image.Close()
	}
	if err := m.mergeEntries(src, dst, name, next); err != nil {
		return err
	}
	return finish(linkPath(dst, name), it)
}

// step returns a subdirectory of the image, or nil.
func (at position) step(name string) *os.File {
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

// opaque is the attribute that keeps overlayfs from merging a directory with lower ones.
var opaque = attr{Name: overlay + "opaque", Value: []byte("y")}

// dropAttrs removes all attributes but one.
func dropAttrs(path, but string) error {
	names, err := attrNames(path)
	for _, name := range names {
		if keep, kerr := isKept(name); kerr == nil && keep && name != but {
			err = errors.Join(err, unix.Lremovexattr(path, name))
		}
	}
	return err
}

// mergeEntries merges the entries of a directory that exists in both.
func (m merge) mergeEntries(src, dst *os.File, name string, at position) error {
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
		if err := m.mergeEntry(from, to, n, at); err != nil {
			return err
		}
	}
	return nil
}

// mergeEntry merges an entry over an existing one.
func (m merge) mergeEntry(src, dst *os.File, name string, at position) error {
	e := entry{name: name}
	if err := unix.Fstatat(int(src.Fd()), name, &e.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if e.isDir() {
		return m.mergeDir(src, dst, name, at)
	}
	if err := files.RemoveEntry(m.ctx, dst, name); err != nil || at.image == nil && e.whiteout() {
		return err
	}
	if err := m.grow(entryBytes); err != nil {
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
	b := bodies{dir: dst, clone: true, grow: m.grow}
	to, err := b.create(e.name)
	if err != nil {
		return err
	}
	return errors.Join(b.contents(m.ctx, to, from, e.stat.Size), to.Close())
}

// item is an entry of the tree at the moment of the freeze, with the IDs and attributes of the layer.
type item struct {
	Leave    bool   // marks the end of a directory; the other fields are empty
	Name     string // "" for the top
	Mode     uint32
	Rdev     uint64
	UID, GID uint32
	Modified unix.Timespec
	Attrs    []attr
	Target   string // of a symbolic link
	Body     string // name of the file's body, which already has all of the above
	Shared   bool   // it has other names
}

func (it item) isDir() bool { return it.Mode&unix.S_IFMT == unix.S_IFDIR }

// list writes the entries of a tree to a file, because a box may have too many to keep in memory.
type list struct {
	file *os.File
	buf  *bufio.Writer
	enc  *gob.Encoder
}

func newList(dir *os.File) (*list, error) {
	fd, err := unix.Openat(int(dir.Fd()), listFile, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	l := &list{file: os.NewFile(uintptr(fd), listFile)}
	l.buf = bufio.NewWriterSize(l.file, 256<<10)
	l.enc = gob.NewEncoder(l.buf)
	return l, nil
}

func (l *list) add(it item) error { return l.enc.Encode(it) }

func (l *list) close() error { return errors.Join(l.buf.Flush(), l.file.Close()) }

// assemble builds the tree from the list and the bodies.
func (c *capture) assemble(ctx context.Context) error {
	f, err := openAt(c.to, listFile, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	a := assembly{dirs: []place{{dir: c.to}}, bodies: c.bodies.dir}
	defer a.close()
	for dec := gob.NewDecoder(bufio.NewReaderSize(f, 256<<10)); ; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var it item
		if err := dec.Decode(&it); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := a.add(it); err != nil {
			return fmt.Errorf("%q: %w", it.Name, err)
		}
	}
}

// assembly is a tree being built: the stack of open directories.
type assembly struct {
	dirs   []place
	bodies *os.File
}

// place is a directory that is being filled, and its final attributes.
type place struct {
	dir *os.File
	it  item
}

func (a *assembly) close() {
	for _, p := range a.dirs[1:] {
		p.dir.Close()
	}
}

// add adds the next entry.
func (a *assembly) add(it item) error {
	dir := a.dirs[len(a.dirs)-1].dir
	switch {
	case it.Leave:
		return a.leaveDir()
	case it.isDir():
		return a.enterDir(dir, it)
	case it.Body != "":
		return a.placeBody(dir, it)
	}
	if err := makeNode(dir, it); err != nil {
		return err
	}
	return finish(linkPath(dir, it.Name), it)
}

// enterDir creates a directory; the following entries are in it.
func (a *assembly) enterDir(dir *os.File, it item) error {
	if it.Name == "" {
		it.Name = treeDir
	}
	if err := unix.Mkdirat(int(dir.Fd()), it.Name, 0o700); err != nil {
		return err
	}
	d, err := openAt(dir, it.Name, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	a.dirs = append(a.dirs, place{d, it})
	return nil
}

// leaveDir completes a directory. Its time is set last, because adding entries changes it.
func (a *assembly) leaveDir() error {
	last := a.dirs[len(a.dirs)-1]
	a.dirs = a.dirs[:len(a.dirs)-1]
	defer last.dir.Close()
	return finish(linkPath(a.dirs[len(a.dirs)-1].dir, last.it.Name), last.it)
}

// placeBody moves a body to its name. A body with other names is linked, so that it stays for these. If the file system's limit
// of links is reached, this is the last name of the original, and the body itself is moved.
func (a *assembly) placeBody(dir *os.File, it item) error {
	if it.Shared {
		err := unix.Linkat(int(a.bodies.Fd()), it.Body, int(dir.Fd()), it.Name, 0)
		if !errors.Is(err, unix.EMLINK) {
			return err
		}
	}
	return unix.Renameat(int(a.bodies.Fd()), it.Body, int(dir.Fd()), it.Name)
}

// makeNode creates an entry that is neither a file nor a directory.
func makeNode(dir *os.File, it item) error {
	if it.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.Symlinkat(it.Target, int(dir.Fd()), it.Name)
	}
	return unix.Mknodat(int(dir.Fd()), it.Name, it.Mode, int(it.Rdev))
}

// finish sets the owner, mode, attributes and time of an entry.
func finish(path string, it item) error {
	if err := unix.Lchown(path, int(it.UID), int(it.GID)); err != nil {
		return err
	}
	if it.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(path, it.Mode&0o7777); err != nil {
			return err
		}
	}
	if err := writeAttrs(path, it.Attrs); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{it.Modified, it.Modified}, unix.AT_SYMLINK_NOFOLLOW)
}

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/launcher/files"
	"boxgate/launcher/namespace"
)

const (
	// fewBytes and fewFiles bound the first copy that may happen with the box frozen: for so little it is not worth syncing
	// the disk first.
	fewBytes = 8 << 20
	fewFiles = 500
	// maxRounds is how many rounds of copying are done before a running box is frozen.
	maxRounds = 3
	// negligibleBytes and negligibleFiles are so little that another round is not worth it.
	negligibleBytes = 1 << 20
	negligibleFiles = 50
	// slack is the minimum age of a file's last change that distinguishes it from the next one: file timestamps have a
	// coarse clock.
	slack = 100 * time.Millisecond
)

// Terms bound a capture, because a box controls its tree and can change it during the capture. The zero value has a
// limit of zero entries.
type Terms struct {
	Entries int64         // in the tree
	Frozen  time.Duration // how long the box may stay frozen
	Exclude string        // an entry of the top directory that is left out with everything below it; "": no entry
	// Grow is called before n more bytes are written, and its error ends the capture. nil: unlimited.
	Grow func(n int64) error
}

// callGrow calls Grow.
func (t Terms) callGrow(n int64) error {
	if t.Grow == nil || n == 0 {
		return nil
	}
	return t.Grow(n)
}

// Report describes a finished capture.
type Report struct {
	Size   int64         // bytes on disk of the layer
	Files  int64         // entries of the layer
	Frozen time.Duration // how long the box was frozen
}

// Capture copies the tree at upper to to/tree. The directory to must not exist. frozen must call its argument once, while
// the tree cannot change. When Capture fails, the caller removes to.
func Capture(ctx context.Context, upper string, ids namespace.IDs, to string, most Terms, frozen func(func() error) error) (Report, error) {
	c, err := newCapture(upper, ids, to, most)
	if err != nil {
		return Report{}, err
	}
	defer c.close()
	if err := c.copyRunning(ctx); err != nil {
		return Report{}, err
	}
	err = frozen(func() error {
		begun := time.Now()
		defer func() { c.report.Frozen = time.Since(begun) }()
		ctx, cancel := context.WithTimeoutCause(ctx, most.Frozen, errFrozenTooLong)
		defer cancel()
		return c.copyFrozen(ctx)
	})
	if err != nil {
		return Report{}, err
	}
	if err := c.assemble(ctx); err != nil {
		return Report{}, err
	}
	if err := files.RemoveTree(ctx, filepath.Join(to, bodiesDir)); err != nil {
		return Report{}, err
	}
	return c.report, errors.Join(os.Remove(filepath.Join(to, listFile)), syncDisk(to))
}

// errFrozenTooLong is the cause when a capture is cancelled because it would keep the box frozen for too long.
var errFrozenTooLong = errors.New("the box was frozen for too long, and has been resumed: the host is overloaded, or the box changes large files all the time; " +
	"have it write less, or pause it, and take another snapshot")

// Contents of a layer. A complete one has only the tree.
const (
	treeDir   = "tree"   // the directory that boxes stack
	bodiesDir = "bodies" // files that have no name in the tree yet
	listFile  = "list"   // the entries of the tree
)

// Tree returns the directory of a layer that boxes stack.
func Tree(layer string) string { return filepath.Join(layer, treeDir) }

// capture is a running capture.
type capture struct {
	ids    namespace.IDs
	upper  *os.File
	to     *os.File
	bodies *bodies
	terms  Terms
	report Report
}

func newCapture(upper string, ids namespace.IDs, to string, most Terms) (c *capture, err error) {
	c = &capture{ids: ids, terms: most}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.upper, err = os.Open(upper); err != nil {
		return nil, err
	}
	for _, dir := range []string{to, filepath.Join(to, bodiesDir)} {
		if err = os.Mkdir(dir, 0o700); err != nil { // no other user may run set-user-ID programs of a box
			return nil, err
		}
	}
	if c.to, err = os.Open(to); err != nil {
		return nil, err
	}
	dir, err := os.Open(filepath.Join(to, bodiesDir))
	if err != nil {
		return nil, err
	}
	c.bodies = &bodies{dir: dir, ids: ids, clone: true, grow: most.callGrow}
	return c, nil
}

func (c *capture) close() {
	c.upper.Close()
	c.to.Close()
	if c.bodies != nil {
		c.bodies.dir.Close()
	}
}

// copyRunning copies files while the box runs. A copy counts only if the file is still in the same state when the box is frozen,
// so errors here do not matter, except a full disk.
func (c *capture) copyRunning(ctx context.Context) error {
	if little, err := c.isSmall(ctx); little || err != nil {
		return err
	}
	for range maxRounds {
		begun := time.Now()
		// A memory-mapped page that a process writes again and again changes the file's time only on the first write after
		// a sync. So only files whose last change is before this sync can be trusted.
		if err := syncDisk(c.upper.Name()); err != nil {
			return err
		}
		fresh, err := c.copyRound(ctx, begun.Add(-slack))
		if err != nil || fresh.bytes < negligibleBytes && fresh.entries < negligibleFiles {
			return err
		}
		select {
		case <-time.After(slack): // so that the next round can distinguish changes
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// isSmall reports whether there is so little to copy that it can all be done with the box frozen.
func (c *capture) isSmall(ctx context.Context) (bool, error) {
	errEnough := errors.New("enough")
	var s sizes
	err := walk(ctx, c.upper, visitor{changing: true, maxEntries: c.terms.Entries, exclude: c.terms.Exclude, entry: func(_ *os.File, e entry) error {
		if s.add(e); s.bytes > fewBytes || s.entries > fewFiles {
			return errEnough
		}
		return nil
	}})
	if errors.Is(err, errEnough) {
		return false, nil
	}
	return true, err
}

// copyRound copies the files last changed before a time, and returns the sizes of the others.
func (c *capture) copyRound(ctx context.Context, before time.Time) (fresh sizes, err error) {
	err = walk(ctx, c.upper, visitor{changing: true, maxEntries: c.terms.Entries, exclude: c.terms.Exclude, entry: func(dir *os.File, e entry) error {
		if !e.regular() {
			return nil
		}
		if !time.Unix(e.stat.Ctim.Unix()).Before(before) {
			fresh.add(e)
			return nil
		}
		err := c.bodies.addCopy(ctx, dir, e)
		if errors.Is(err, errChanged) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
			fresh.add(e)
			return nil
		}
		return err
	}})
	return fresh, err
}

// copyFrozen lists the tree of a frozen box, and copies the files that have no body yet.
func (c *capture) copyFrozen(ctx context.Context) error {
	w, err := newList(c.to)
	if err != nil {
		return err
	}
	var s sizes
	note := func(dir *os.File, e entry) error {
		if err := c.terms.callGrow(entryBytes); err != nil {
			return err
		}
		it, err := c.itemOf(ctx, dir, e)
		if err != nil {
			return err
		}
		s.add(e)
		return w.add(it)
	}
	err = walk(ctx, c.upper, visitor{maxEntries: c.terms.Entries, exclude: c.terms.Exclude, entry: note, leave: func() error { return w.add(item{Leave: true}) }})
	c.report.Size, c.report.Files = s.bytes, s.entries
	return errors.Join(err, w.close())
}

// entryBytes is the minimum size of an entry, for its inode and name.
const entryBytes = 512

// sizes adds up entries.
type sizes struct {
	bytes, entries int64
	linked         map[uint64]bool // files with several names that were already counted
}

// maxLinked is how many files with several names are tracked. Beyond that, each name of a file counts for its share.
const maxLinked = 1 << 16

func (s *sizes) add(e entry) {
	s.entries++
	bytes := e.stat.Blocks * 512
	if e.stat.Nlink > 1 && !e.isDir() {
		switch {
		case s.linked[e.stat.Ino]:
			return
		case s.linked == nil:
			s.linked = map[uint64]bool{}
		case len(s.linked) == maxLinked:
			s.bytes += bytes / int64(e.stat.Nlink)
			return
		}
		s.linked[e.stat.Ino] = true
	}
	s.bytes += bytes
}

// itemOf returns the list item of an entry. It copies the body of a file first.
func (c *capture) itemOf(ctx context.Context, dir *os.File, e entry) (item, error) {
	if !e.regular() {
		return describe(dir, e, c.ids)
	}
	it := item{Name: e.name, Body: bodyName(e.stat), Shared: e.stat.Nlink > 1}
	return it, c.bodies.addCopy(ctx, dir, e)
}

// describe converts an entry to the IDs and attributes of a layer.
func describe(dir *os.File, e entry, ids namespace.IDs) (item, error) {
	it := item{
		Name: e.name, Mode: e.stat.Mode, Rdev: e.stat.Rdev, UID: unmapped(ids, e.stat.Uid), GID: unmapped(ids, e.stat.Gid), Modified: e.stat.Mtim,
	}
	var err error
	switch e.stat.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		it.Target, err = readLink(dir, e.name)
	case unix.S_IFCHR, unix.S_IFBLK:
		if !e.whiteout() {
			err = fmt.Errorf("%q is a device, which no box can make", e.name)
		}
	}
	if err == nil {
		it.Attrs, err = readAttrs(linkPath(dir, e.name), ids)
	}
	return it, err
}

// syncDisk writes the file system of a directory to disk.
func syncDisk(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("the disk cannot be synchronised: %w", err)
	}
	return nil
}

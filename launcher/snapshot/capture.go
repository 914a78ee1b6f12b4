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

// errChanged is returned for a file that changed while it was copied, or was replaced.
var errChanged = errors.New("the file has changed")

// bodies are copies of files, complete with owner, mode, times and attributes, each named after the inode and state of the
// original.
type bodies struct {
	dir   *os.File
	ids   namespace.IDs
	clone bool                // the file system may be able to share blocks between files
	grow  func(n int64) error // called before n more bytes are written
}

// bodyName names a file in one state: any change of contents, owner, mode or attributes changes the time.
func bodyName(st unix.Stat_t) string {
	return fmt.Sprintf("%x-%x-%x", st.Ino, st.Ctim.Sec, st.Ctim.Nsec)
}

func (b *bodies) has(name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(int(b.dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// addCopy copies the file of an entry. It returns errChanged if the file is not in the entry's state both before and after.
func (b *bodies) addCopy(ctx context.Context, dir *os.File, e entry) error {
	name := bodyName(e.stat)
	if b.has(name) {
		return nil // copied under another name
	}
	from, err := openAt(dir, e.name, 0)
	if err != nil {
		return err
	}
	defer from.Close()
	if !inState(from, name) {
		return errChanged
	}
	to, err := b.create(name)
	if err != nil {
		return err
	}
	err = b.fill(ctx, to, from, e.stat)
	if err == nil && !inState(from, name) {
		err = errChanged
	}
	if cerr := to.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(int(b.dir.Fd()), name, 0))
	}
	return nil
}

// inState reports whether an open file is the original of a body, in the same state.
func inState(f *os.File, name string) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && bodyName(st) == name
}

func (b *bodies) create(name string) (*os.File, error) {
	fd, err := unix.Openat(int(b.dir.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// fill copies contents, owner, mode, attributes and time of a file.
func (b *bodies) fill(ctx context.Context, to, from *os.File, st unix.Stat_t) error {
	if err := b.contents(ctx, to, from, st.Size); err != nil {
		return err
	}
	attrs, err := readAttrs(fdPath(from), b.ids)
	if err != nil {
		return err
	}
	fd := int(to.Fd())
	if err := unix.Fchown(fd, int(unmapped(b.ids, st.Uid)), int(unmapped(b.ids, st.Gid))); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, st.Mode&0o7777); err != nil { // after the owner, which clears the set-user-ID bit
		return err
	}
	if err := writeAttrs(fdPath(to), attrs); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, fdPath(to), []unix.Timespec{st.Mtim, st.Mtim}, 0)
}

// contents copies the contents of a file: by sharing its blocks if the file system can, otherwise all but the holes.
func (b *bodies) contents(ctx context.Context, to, from *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	if b.clone {
		err := unix.IoctlFileClone(int(to.Fd()), int(from.Fd()))
		if err == nil {
			return b.growFor(to) // the blocks become its own when the box changes the file
		}
		b.clone = false
	}
	if err := unix.Ftruncate(int(to.Fd()), size); err != nil {
		return err
	}
	for at := int64(0); at < size; {
		begin, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // a hole up to the end
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(from.Fd()), begin, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if err := b.copyRange(ctx, to, from, begin, min(end, size)); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// growFor calls room for the blocks of a file.
func (b *bodies) growFor(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	return b.grow(st.Blocks * 512)
}

// copyChunk is how many bytes are copied between two checks of the context.
const copyChunk = 16 << 20

// copyRange copies bytes within the kernel.
func (b *bodies) copyRange(ctx context.Context, to, from *os.File, begin, end int64) error {
	for paid := int64(0); begin < end; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		chunk := min(end-begin, copyChunk)
		if err := b.grow(max(chunk-paid, 0)); err != nil {
			return err
		}
		paid = max(paid, chunk)
		in, out := begin, begin
		n, err := unix.CopyFileRange(int(from.Fd()), &in, int(to.Fd()), &out, int(chunk), 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL):
			if n, err = copyBytes(to, from, begin, begin+chunk); err != nil {
				return err
			}
		case err != nil:
			return err
		}
		if n == 0 {
			return errChanged // it has been truncated
		}
		begin, paid = begin+int64(n), paid-int64(n)
	}
	return nil
}

// copyBytes copies part of a range through this process, for file systems without copy_file_range.
func copyBytes(to, from *os.File, begin, end int64) (int, error) {
	buf := make([]byte, min(end-begin, 1<<20))
	n, err := unix.Pread(int(from.Fd()), buf, begin)
	if n <= 0 || err != nil {
		return 0, err
	}
	return to.WriteAt(buf[:n], begin)
}

// fdPath names an open file for calls that take only paths.
func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"boxgate/launcher/namespace"
)

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

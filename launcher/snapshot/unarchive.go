package snapshot

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"boxgate/launcher/files"
)

// ErrArchive means that an archive is not one that [Archive] writes.
var ErrArchive = errors.New("the archive of the layer is damaged")

// maxEntryBytes bounds one entry of an archive in memory: a name, and as many attributes as file systems keep.
const maxEntryBytes = 4 << 20

// Unarchive makes the layer of an archive in the directory to, which must not exist. All that it creates is in to, whatever the
// archive contains: each name is one element, created in the directory that was opened for it. It refuses everything that a capture does
// not write, such as devices and attributes by which overlayfs would look for a file elsewhere. When Unarchive fails, the caller removes to.
func Unarchive(ctx context.Context, r io.Reader, to string, most Terms) (Report, error) {
	if err := unpack(ctx, r, to, most); err != nil {
		return Report{}, err
	}
	report, err := measure(ctx, Tree(to))
	return report, errors.Join(err, syncDisk(to))
}

// unpack does so without syncing the disk.
func unpack(ctx context.Context, r io.Reader, to string, most Terms) error {
	for _, dir := range []string{to, filepath.Join(to, bodiesDir)} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	dst, err := os.Open(to)
	if err != nil {
		return err
	}
	defer dst.Close()
	bodies, err := os.Open(filepath.Join(to, bodiesDir))
	if err != nil {
		return err
	}
	defer bodies.Close()
	u := newUnarchiver(ctx, r, most)
	u.assembly = assembly{dirs: []place{{dir: dst}}, bodies: bodies}
	defer u.close()
	if err := u.all(); err != nil {
		return err
	}
	return files.RemoveTree(ctx, filepath.Join(to, bodiesDir))
}

// unarchiver reads an archive.
type unarchiver struct {
	assembly
	ctx   context.Context
	in    *boundedReader
	dec   *gob.Decoder
	terms Terms
	seen  int64
	links uint32 // number of files with several names so far
	block [blockSize]byte
}

func newUnarchiver(ctx context.Context, r io.Reader, most Terms) *unarchiver {
	in := &boundedReader{r: bufio.NewReaderSize(r, 256<<10)}
	return &unarchiver{ctx: ctx, in: in, dec: gob.NewDecoder(in), terms: most}
}

// boundedReader reads at most left bytes. As it reads bytes one by one as well, gob does not read beyond a message.
type boundedReader struct {
	r    *bufio.Reader
	left int
}

var errEntryTooLong = fmt.Errorf("%w: an entry is too long", ErrArchive)

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errEntryTooLong
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

func (b *boundedReader) ReadByte() (byte, error) {
	if b.left <= 0 {
		return 0, errEntryTooLong
	}
	b.left--
	return b.r.ReadByte()
}

// next reads the next entry, and checks that a capture could have written it.
func (u *unarchiver) next() (p packed, err error) {
	u.in.left = maxEntryBytes
	if err := u.dec.Decode(&p); err != nil {
		return p, fmt.Errorf("%w: %w", ErrArchive, noEOF(err))
	}
	if u.seen++; u.seen > u.terms.Entries {
		return p, fmt.Errorf("%w: it has more than %d entries", ErrArchive, u.terms.Entries)
	}
	switch {
	case p.Last && len(u.dirs) != 1, p.Item.Leave && len(u.dirs) < 2:
		return p, fmt.Errorf("%w: its directories do not match", ErrArchive)
	case p.Last || p.Item.Leave:
		return p, nil
	}
	return p, u.check(p)
}

// noEOF converts the regular end of a stream into an error.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// check refuses entries that a capture does not write.
func (u *unarchiver) check(p packed) error {
	top := len(u.dirs) == 1
	kind := p.Item.Mode & unix.S_IFMT
	switch {
	case top != (p.Item.Name == "") || top && (u.seen != 1 || kind != unix.S_IFDIR):
		return fmt.Errorf("%w: it has another top", ErrArchive)
	case !top && (p.Item.Name == "." || p.Item.Name == ".." || len(p.Item.Name) > unix.NAME_MAX || strings.ContainsAny(p.Item.Name, "/\x00")):
		return fmt.Errorf("%w: %.300q is not the name of a file", ErrArchive, p.Item.Name)
	case len(u.dirs) > maxDepth+1:
		return errTooDeep
	case kind == unix.S_IFCHR && p.Item.Rdev == 0, kind == unix.S_IFDIR, kind == unix.S_IFREG, kind == unix.S_IFIFO, kind == unix.S_IFSOCK:
	case kind == unix.S_IFLNK && p.Item.Target != "" && len(p.Item.Target) < unix.PathMax && !strings.Contains(p.Item.Target, "\x00"):
	default:
		return fmt.Errorf("%w: %q has mode %o, which no box can make", ErrArchive, p.Item.Name, p.Item.Mode)
	}
	if p.Item.UID > overflowID || p.Item.GID > overflowID || p.Item.Body != "" || p.Item.Shared || p.Size < 0 {
		return fmt.Errorf("%w: %q has an owner or size that no file of a box has", ErrArchive, p.Item.Name)
	}
	for _, a := range p.Item.Attrs {
		if keep, err := isKept(a.Name); err != nil || !keep {
			return fmt.Errorf("%w: %q has the attribute %.300q", ErrArchive, p.Item.Name, a.Name)
		}
	}
	return nil
}

// all reads the archive up to its end.
func (u *unarchiver) all() error {
	for {
		if u.ctx.Err() != nil {
			return context.Cause(u.ctx)
		}
		p, err := u.next()
		if err != nil {
			return err
		}
		if p.Last {
			return u.end()
		}
		if err := u.place(p); err != nil {
			return fmt.Errorf("%.300q: %w", p.Item.Name, err)
		}
	}
}

// end requires that the archive had a top and ends here.
func (u *unarchiver) end() error {
	if u.seen < 2 {
		return fmt.Errorf("%w: it is empty", ErrArchive)
	}
	_, err := u.in.r.ReadByte()
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil: // such as a wrong digest
		return err
	}
	return fmt.Errorf("%w: it has bytes after its end", ErrArchive)
}

// place creates an entry.
func (u *unarchiver) place(p packed) error {
	if p.Item.Leave {
		return u.leaveDir()
	}
	if err := u.terms.callGrow(entryBytes); err != nil {
		return err
	}
	dir := u.dirs[len(u.dirs)-1].dir
	if p.Item.Mode&unix.S_IFMT != unix.S_IFREG {
		return u.add(p.Item)
	}
	body := fmt.Sprint(p.Link)
	if p.Link != 0 && p.Link <= u.links {
		return u.placeBody(dir, item{Name: p.Item.Name, Body: body, Shared: true})
	}
	if err := u.file(dir, p); err != nil || p.Link == 0 {
		return err
	}
	if u.links++; p.Link != u.links {
		return fmt.Errorf("%w: its files with several names are not in order", ErrArchive)
	}
	return unix.Linkat(int(dir.Fd()), p.Item.Name, int(u.bodies.Fd()), body, 0)
}

// file creates a regular file.
func (u *unarchiver) file(dir *os.File, p packed) error {
	fd, err := unix.Openat(int(dir.Fd()), p.Item.Name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), p.Item.Name)
	err = errors.Join(unix.Ftruncate(fd, p.Size), u.contents(f, p.Size))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return finish(linkPath(dir, p.Item.Name), p.Item)
}

// contents writes the runs of a file.
func (u *unarchiver) contents(f *os.File, size int64) error {
	for next := int64(0); ; {
		if u.ctx.Err() != nil {
			return context.Cause(u.ctx)
		}
		at, err := binary.ReadUvarint(u.in.r)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrArchive, noEOF(err))
		}
		n, err := binary.ReadUvarint(u.in.r)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrArchive, noEOF(err))
		}
		if n == 0 && at == uint64(size) {
			return nil
		}
		if n == 0 || n > blockSize || at < uint64(next) || at > uint64(size) || n > uint64(size)-at {
			return fmt.Errorf("%w: it has a block outside of a file", ErrArchive)
		}
		block := u.block[:n]
		if _, err := io.ReadFull(u.in.r, block); err != nil {
			return fmt.Errorf("%w: %w", ErrArchive, noEOF(err))
		}
		if err := u.write(f, block, int64(at)); err != nil {
			return err
		}
		next = int64(at + n)
	}
}

// pageSize is the size of the smallest holes in files.
const pageSize = 4 << 10

// write writes the pages of a block that are not zero, so that a file with many holes takes no more of the disk than the original.
func (u *unarchiver) write(f *os.File, block []byte, at int64) error {
	for begin := 0; begin < len(block); {
		end := begin
		for end < len(block) && !isZero(block[end:min(end+pageSize, len(block))]) {
			end = min(end+pageSize, len(block))
		}
		if end == begin {
			begin += pageSize
			continue
		}
		if err := u.terms.callGrow(int64(end - begin)); err != nil {
			return err
		}
		if _, err := f.WriteAt(block[begin:end], at+int64(begin)); err != nil {
			return err
		}
		begin = end
	}
	return nil
}

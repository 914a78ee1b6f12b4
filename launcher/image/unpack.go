package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"boxgate/launcher/files"
)

// Limits of one image, beyond which unpacking fails. They protect the host's disk against decompression bombs.
const (
	maxImageBytes   = 64 << 30
	maxImageEntries = 4 << 20
	maxImagePath    = unix.PathMax - 1 // no program can open a longer path; resolving one takes quadratic time
)

// unpacker applies the layers of an image to a directory. Entries cannot escape from it: paths with ".." are refused,
// absolute paths are relative to the directory, links on the way are followed as if the directory were the root, and
// os.Root enforces all that. Devices, sockets and pipes are left out: a box gets its own /dev.
type unpacker struct {
	root    *os.Root
	bytes   int64
	entries int
	times   []dirTime // of directories, set last, because creating entries changes them
}

type dirTime struct {
	name string
	hdr  *tar.Header
}

// layer applies one layer. Its whiteouts remove entries of lower layers, never its own.
func (u *unpacker) layer(ctx context.Context, r io.Reader) error {
	own := map[string]bool{} // entries of this layer, with parents
	for tr := tar.NewReader(r); ; {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return u.finishDirs()
		}
		if err != nil {
			return fmt.Errorf("broken archive: %w", err)
		}
		if u.entries++; u.entries > maxImageEntries {
			return errors.New("the image has too many files")
		}
		if err := u.entry(ctx, hdr, tr, own); err != nil {
			return fmt.Errorf("archive entry %.200q: %w", hdr.Name, err)
		}
	}
}

const (
	whiteout       = ".wh."
	opaqueWhiteout = ".wh..wh..opq"
)

// entry applies one entry of a layer.
func (u *unpacker) entry(ctx context.Context, hdr *tar.Header, content io.Reader, own map[string]bool) error {
	name, err := u.place(hdr.Name)
	if err != nil || name == "." {
		return err
	}
	base := path.Base(name)
	switch {
	case base == opaqueWhiteout:
		return u.clear(ctx, path.Dir(name), own)
	case strings.HasPrefix(base, whiteout):
		gone := path.Join(path.Dir(name), strings.TrimPrefix(base, whiteout))
		if own[gone] || base == whiteout+"." || base == whiteout+".." || base == whiteout {
			return nil
		}
		return u.remove(ctx, gone)
	}
	for p := name; p != "." && !own[p]; p = path.Dir(p) {
		own[p] = true
	}
	if dir := path.Dir(name); dir != "." {
		if err := u.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return u.create(ctx, name, hdr, content)
}

// place turns the name of an entry into a path below the root without links in its parents.
func (u *unpacker) place(name string) (string, error) {
	if len(name) > maxImagePath {
		return "", errTooLong
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", errors.New("refused: its name leads out of the image")
		}
	}
	if strings.ContainsRune(name, 0) {
		return "", errors.New("refused: its name contains NUL")
	}
	p, err := files.ResolveParent(u.root, name)
	if err == nil && len(p) > maxImagePath { // links can make it longer
		return "", errTooLong
	}
	return p, err
}

var errTooLong = errors.New("refused: its path is longer than Linux allows")

// remove removes a resolved path; a missing one is not an error.
func (u *unpacker) remove(ctx context.Context, name string) error {
	parent, err := u.root.Open(path.Dir(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	return files.RemoveEntry(ctx, parent, path.Base(name))
}

// clear removes the entries of lower layers from a directory.
func (u *unpacker) clear(ctx context.Context, dir string, own map[string]bool) error {
	d, err := u.root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	d.Close()
	if err != nil {
		return err
	}
	for _, n := range names {
		if p := path.Join(dir, n); !own[p] {
			err = errors.Join(err, u.remove(ctx, p))
		}
	}
	return err
}

// create replaces a path by one file, directory or link.
func (u *unpacker) create(ctx context.Context, name string, hdr *tar.Header, content io.Reader) error {
	old, err := u.root.Lstat(name)
	if err == nil && (!old.IsDir() || hdr.Typeflag != tar.TypeDir) {
		if err := u.remove(ctx, name); err != nil {
			return err
		}
	}
	switch hdr.Typeflag {
	case tar.TypeDir:
		if err := u.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		u.times = append(u.times, dirTime{name, hdr})
	case tar.TypeReg:
		if err := u.file(ctx, name, content); err != nil {
			return err
		}
	case tar.TypeSymlink:
		if err := u.root.Symlink(hdr.Linkname, name); err != nil {
			return err
		}
		return u.root.Lchown(name, hdr.Uid, hdr.Gid)
	case tar.TypeLink:
		return u.link(name, hdr.Linkname)
	default:
		return nil // a device, a pipe, or another type that is left out
	}
	return u.attributes(name, hdr)
}

// link creates a hard link to an earlier entry, which must be a file; a symbolic link is copied.
func (u *unpacker) link(name, target string) error {
	old, err := u.place(target)
	if err != nil {
		return err
	}
	fi, err := u.root.Lstat(old)
	if err != nil {
		return err
	}
	if fi.Mode()&fs.ModeSymlink != 0 {
		text, err := u.root.Readlink(old)
		if err != nil {
			return err
		}
		return u.root.Symlink(text, name)
	}
	if !fi.Mode().IsRegular() {
		return errors.New("refused: a hard link to something that is not a file")
	}
	return u.root.Link(old, name)
}

func (u *unpacker) file(ctx context.Context, name string, content io.Reader) error {
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(contextReader{ctx, content}, maxImageBytes-u.bytes+1))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if u.bytes += n; err == nil && u.bytes > maxImageBytes {
		err = errors.New("the image is too large")
	}
	return err
}

// contextReader reads until its context ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

// Read implements [io.Reader].
func (w contextReader) Read(p []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, context.Cause(w.ctx)
	}
	return w.r.Read(p)
}

// attributes sets owner, mode and, for files, time. The owner comes first, because changing it clears the set-user-ID bit.
func (u *unpacker) attributes(name string, hdr *tar.Header) error {
	if err := u.root.Lchown(name, hdr.Uid, hdr.Gid); err != nil {
		return err
	}
	const bits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	if err := u.root.Chmod(name, hdr.FileInfo().Mode()&bits); err != nil {
		return err
	}
	if hdr.Typeflag == tar.TypeDir {
		return nil
	}
	return u.root.Chtimes(name, hdr.ModTime, hdr.ModTime)
}

// finishDirs sets the times of directories, except directories that a later entry replaced.
func (u *unpacker) finishDirs() error {
	for _, d := range u.times {
		if fi, err := u.root.Lstat(d.name); err != nil || !fi.IsDir() {
			continue
		}
		if err := u.root.Chtimes(d.name, d.hdr.ModTime, d.hdr.ModTime); err != nil {
			return err
		}
	}
	u.times = nil
	return nil
}

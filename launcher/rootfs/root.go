package rootfs

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"boxgate/launcher/files"
	"boxgate/launcher/namespace"
)

// Root writes into the root of a box that is being created. Links in the image are followed as the box would follow them
// and never lead out of it. Written files belong to a user of the box.
type Root struct {
	root *os.Root
	ids  namespace.IDs
	// accept refuses open files of a running box, before they are read or written; nil: accepts all, and the root is not that of
	// a running box.
	accept func(*os.File) error
}

// Open opens the root at a mount point; Close it before unmounting.
func Open(at string, ids namespace.IDs) (*Root, error) {
	root, err := os.OpenRoot(at)
	if err != nil {
		return nil, err
	}
	return &Root{root: root, ids: ids}, nil
}

// OpenRunning opens the root directory of this process, which must be that of a running box, as the box's root, which this
// process must be. accept is called for each file before it is read or written.
func OpenRunning(accept func(*os.File) error) (*Root, error) {
	b, err := Open("/", namespace.IDsFrom(os.Getuid()))
	if err == nil {
		b.accept = accept
	}
	return b, err
}

// Close releases the mount point.
func (b *Root) Close() error { return b.root.Close() }

// maxRead is the largest file of an image that is read: user databases and certificates are far smaller.
const maxRead = 16 << 20

// read returns the content of a file, or fs.ErrNotExist.
func (b *Root) read(name string) ([]byte, error) {
	p, err := files.Resolve(b.root, name)
	if err != nil {
		return nil, err
	}
	return b.readAt(p)
}

// readAt reads a file at a resolved path. An image may have anything there: a pipe without a writer, a device, a file
// larger than the host's memory.
func (b *Root) readAt(p string) ([]byte, error) {
	if fi, err := b.root.Lstat(p); err != nil {
		return nil, err
	} else if !fi.Mode().IsRegular() {
		return nil, notAFile(p)
	}
	f, err := b.openFile(p, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRead+1))
	if err == nil && len(data) > maxRead {
		err = fmt.Errorf("%s in the image is larger than %d MiB", p, maxRead>>20)
	}
	return data, err
}

// openFile opens a regular file at a resolved path. Processes in the root may replace it at any time, so it does not block
// on pipes, and checks the type after opening.
func (b *Root) openFile(p string, flags int, mode fs.FileMode) (*os.File, error) {
	f, err := b.root.OpenFile(p, flags|unix.O_NONBLOCK, mode)
	if errors.Is(err, unix.ENXIO) { // a pipe without a reader, or a device that does not exist
		return nil, notAFile(p)
	}
	if err != nil {
		return nil, err
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, errors.Join(notAFile(p), f.Close())
	}
	if b.accept != nil {
		if err := b.accept(f); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

func notAFile(p string) error { return fmt.Errorf("%s in the image is not a file", p) }

// mkdir makes a directory owned by a user of the box, and its missing parents owned by root.
func (b *Root) mkdir(name string, mode fs.FileMode, owner int) error {
	p, err := files.Resolve(b.root, name)
	if err != nil {
		return err
	}
	if err := b.parents(p); err != nil {
		return err
	}
	err = b.root.Mkdir(p, mode)
	if err != nil && (!errors.Is(err, fs.ErrExist) || !b.isDir(p)) {
		return err
	}
	return b.setOwner(p, mode, owner)
}

// parents makes the missing parents of a resolved path.
func (b *Root) parents(p string) error {
	dir := path.Dir(p)
	if dir == "." {
		return nil
	}
	if _, err := b.root.Lstat(dir); err == nil {
		return nil
	}
	if err := b.parents(dir); err != nil {
		return err
	}
	if err := b.root.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return b.setOwner(dir, 0o755, 0)
}

func (b *Root) setOwner(p string, mode fs.FileMode, owner int) error {
	if err := b.root.Lchown(p, b.ids.Host(owner), b.ids.Host(owner)); err != nil {
		return err
	}
	return b.root.Chmod(p, mode)
}

// write replaces the content of a file, following links; the file will be owned by the box's root.
func (b *Root) write(name string, data []byte, mode fs.FileMode) error {
	p, err := files.Resolve(b.root, name)
	if err != nil {
		return err
	}
	return b.writeAt(p, data, mode)
}

// Replace writes a plain file in place of anything except a directory that is not empty.
func (b *Root) Replace(name string, data []byte, mode fs.FileMode) error {
	return b.replace(name, data, mode)
}

// replace writes a plain file in place of a possible link: images have links that only make sense on another system, such
// as /etc/resolv.conf pointing into /run. A directory is refused unless it is empty.
func (b *Root) replace(name string, data []byte, mode fs.FileMode) error {
	p, err := files.ResolveParent(b.root, name)
	if err != nil {
		return err
	}
	if err := b.root.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return b.writeAt(p, data, mode)
}

func (b *Root) writeAt(p string, data []byte, mode fs.FileMode) error {
	if err := b.parents(p); err != nil {
		return err
	}
	if fi, err := b.root.Lstat(p); err == nil && !fi.Mode().IsRegular() {
		return notAFile(p) // never write to a device or block on a pipe
	}
	f, err := b.openFile(p, os.O_WRONLY|os.O_CREATE, mode)
	if err != nil {
		return err
	}
	return errors.Join(b.replaceContent(f, data, mode), f.Close())
}

// exchange is writeAt with a new file that takes the place of the old one, so that readers see either. Where that is impossible,
// because the file is a mount point, it is overwritten. If the disk is full, the old one stays.
func (b *Root) exchange(p string, data []byte, mode fs.FileMode) error {
	if err := b.parents(p); err != nil {
		return err
	}
	if fi, err := b.root.Lstat(p); err == nil && !fi.Mode().IsRegular() {
		return notAFile(p)
	}
	next := p + ".new-" + rand.Text()
	f, err := b.openFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err == nil {
		if err = errors.Join(b.replaceContent(f, data, mode), f.Close()); err == nil {
			err = b.root.Rename(next, p)
		}
		if err != nil {
			_ = b.root.Remove(next)
		}
	}
	if err == nil || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return err
	}
	return b.writeAt(p, data, mode)
}

// replaceContent replaces the content of an open file; the file will be owned by the box's root.
func (b *Root) replaceContent(f *os.File, data []byte, mode fs.FileMode) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Chown(b.ids.Host(0), b.ids.Host(0)); err != nil {
		return err
	}
	return f.Chmod(mode)
}

// symlink makes a link, and replaces an existing file.
func (b *Root) symlink(target, name string) error {
	p, err := files.ResolveParent(b.root, name)
	if err != nil {
		return err
	}
	if err := b.parents(p); err != nil {
		return err
	}
	if err := b.root.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := b.root.Symlink(target, p); err != nil {
		return err
	}
	return b.root.Lchown(p, b.ids.Host(0), b.ids.Host(0))
}

// isDir reports whether a name leads to a directory of the image.
func (b *Root) isDir(name string) bool {
	p, err := files.Resolve(b.root, name)
	if err != nil {
		return false
	}
	fi, err := b.root.Lstat(p)
	return err == nil && fi.IsDir()
}

// isFile reports whether a name leads to a regular file of the image.
func (b *Root) isFile(name string) bool {
	p, err := files.Resolve(b.root, name)
	if err != nil {
		return false
	}
	fi, err := b.root.Lstat(p)
	return err == nil && fi.Mode().IsRegular()
}

// Package copying implements the local side of `gateway box cp`: it packs files into forms and archives, and unpacks
// archives. An archive from a box is untrusted: no file is created outside the target directory.
package copying

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"os"
	"path/filepath"
	"sync/atomic"
)

// Body is a request body that is produced while it is sent.
type Body struct {
	io.ReadCloser
	Media string
	count atomic.Int64
}

// Count returns the number of bytes of file content in the body.
func (b *Body) Count() int64 { return b.count.Load() }

// counted counts the bytes read from r.
func (b *Body) counted(r io.Reader) io.Reader {
	return io.TeeReader(r, writerFunc(func(p []byte) (int, error) {
		b.count.Add(int64(len(p)))
		return len(p), nil
	}))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Form returns a form for files/upload with one file.
func Form(target string, file io.Reader) *Body {
	r, w := io.Pipe()
	form := multipart.NewWriter(w)
	b := &Body{ReadCloser: r, Media: form.FormDataContentType()}
	go func() {
		err := form.WriteField("paths", target)
		var part io.Writer
		if err == nil {
			part, err = form.CreateFormFile("files", "file")
		}
		if err == nil {
			_, err = io.Copy(part, b.counted(file))
		}
		if err == nil {
			err = form.Close()
		}
		w.CloseWithError(err)
	}()
	return b
}

// Pack returns the contents of a directory as a tar archive.
func Pack(dir string) *Body {
	r, w := io.Pipe()
	b := &Body{ReadCloser: r, Media: "application/x-tar"}
	go func() {
		archive := tar.NewWriter(w)
		err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
			if err != nil || at == dir {
				return err
			}
			return b.add(archive, dir, at, d)
		})
		if err == nil {
			err = archive.Close()
		}
		w.CloseWithError(err)
	}()
	return b
}

func (b *Body) add(archive *tar.Writer, dir, at string, d fs.DirEntry) error {
	name, err := filepath.Rel(dir, at)
	if err != nil {
		return err
	}
	fi, err := d.Info()
	if err != nil {
		return err
	}
	link := ""
	switch {
	case fi.Mode()&fs.ModeSymlink != 0:
		if link, err = os.Readlink(at); err != nil {
			return err
		}
	case !fi.IsDir() && !fi.Mode().IsRegular():
		return fmt.Errorf("%s is neither a file, a directory nor a symbolic link", at)
	}
	h, err := tar.FileInfoHeader(fi, link)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname, h.Uid, h.Gid = filepath.ToSlash(name), "", "", 0, 0
	if err := archive.WriteHeader(h); err != nil || !fi.Mode().IsRegular() {
		return err
	}
	file, err := os.Open(at)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(archive, b.counted(io.LimitReader(file, fi.Size())))
	return err
}

// Save writes a file and returns its size. An incomplete file is removed.
func Save(local string, content io.Reader) (int64, error) {
	temporary, err := os.CreateTemp(filepath.Dir(local), ".boxgate-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(temporary.Name())
	n, err := io.Copy(temporary, content)
	if err = errors.Join(err, temporary.Chmod(0o644), temporary.Close()); err != nil {
		return 0, err
	}
	return n, os.Rename(temporary.Name(), local)
}

// Unpack extracts an archive into a directory, which is created if missing, and returns the number of bytes written. An
// [os.Root] confines the files to that directory, whatever names and links the archive contains.
func Unpack(dir string, archive io.Reader) (int64, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	var total int64
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, archive) // read on to the trailers
			return total, err
		}
		if err != nil {
			return total, fmt.Errorf("the box's archive cannot be read: %w", err)
		}
		n, err := unpackOne(root, h, r)
		if total += n; err != nil {
			return total, fmt.Errorf("%q: %w", h.Name, err)
		}
	}
}

func unpackOne(root *os.Root, h *tar.Header, content io.Reader) (int64, error) {
	name := filepath.Clean(filepath.FromSlash(h.Name))
	mode := fs.FileMode(h.Mode).Perm()
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return 0, err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.MkdirAll(name, 0o755); err != nil {
			return 0, err
		}
		return 0, root.Chmod(name, mode|0o700)
	case tar.TypeSymlink:
		if fi, err := root.Lstat(name); err == nil && !fi.IsDir() {
			_ = root.Remove(name) // if this fails, Symlink reports it
		}
		return 0, root.Symlink(h.Linkname, name)
	case tar.TypeReg:
	default:
		return 0, errors.New("neither a file, a directory nor a symbolic link")
	}
	if fi, err := root.Lstat(name); err == nil && !fi.IsDir() {
		_ = root.Remove(name) // do not write through it: it may be a link from the archive
	}
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(file, content)
	return n, errors.Join(err, file.Close())
}

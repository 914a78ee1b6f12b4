package worker

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// pack sends a directory as a tar archive: directories, regular files and symbolic links, with their permissions.
// Unreadable files and other types are left out and counted.
func (s *server) pack(dir string) error {
	err := os.Chdir(dir)
	defer leaveDir()
	var entries []fs.DirEntry
	if err == nil {
		entries, err = entriesOf(".")
	}
	if sent := s.answer(Answer{}, err); sent != nil || err != nil {
		return sent
	}
	content := &ContentWriter{W: s.out}
	p := packer{w: tar.NewWriter(content)}
	if err := p.addAll(".", entries); err != nil {
		return err
	}
	if err := errors.Join(p.w.Close(), content.Close()); err != nil {
		return err
	}
	return s.answer(Answer{Skipped: p.skipped}, nil)
}

// leaveDir changes to the root: the working directory of a process cannot be unmounted.
func leaveDir() { _ = os.Chdir("/") }

type packer struct {
	w       *tar.Writer
	skipped int
}

// addAll adds entries of a directory. An error is an error of the stream.
func (p *packer) addAll(dir string, entries []fs.DirEntry) error {
	for _, d := range entries {
		if err := p.add(path.Join(dir, d.Name()), d); err != nil {
			return err
		}
	}
	return nil
}

// add adds an entry and everything below it.
func (p *packer) add(name string, d fs.DirEntry) error {
	switch {
	case d.IsDir():
		return p.addDir(name, d)
	case d.Type()&fs.ModeSymlink != 0:
		return p.addEmpty(name, d)
	case d.Type().IsRegular():
		return p.addFile(name)
	}
	p.skipped++
	return nil
}

// addDir adds a directory with its entries, if it can be read.
func (p *packer) addDir(name string, d fs.DirEntry) error {
	if err := p.addEmpty(name, d); err != nil {
		return err
	}
	entries, err := entriesOf(name)
	if err != nil {
		p.skipped++
		return nil //nolint:nilerr // counted
	}
	return p.addAll(name, entries)
}

// addEmpty adds a directory or symbolic link.
func (p *packer) addEmpty(name string, d fs.DirEntry) error {
	fi, err := d.Info()
	to := ""
	if err == nil && fi.Mode()&fs.ModeSymlink != 0 {
		to, err = os.Readlink(name)
	}
	if err == nil {
		return p.w.WriteHeader(headerOf(fi, name, to))
	}
	p.skipped++ // it has been removed
	return nil
}

// addFile adds a file with its size when it was opened, since the size comes first in the archive. If the file shrinks,
// zeros follow.
func (p *packer) addFile(name string) error {
	f, fi, err := openRegular(name, os.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		p.skipped++
		return nil //nolint:nilerr // counted
	}
	defer f.Close()
	if err := p.w.WriteHeader(headerOf(fi, name, "")); err != nil {
		return err
	}
	_, err = io.CopyBuffer(onlyWriter{p.w}, io.LimitReader(io.MultiReader(f, zeros{}), fi.Size()), make([]byte, MaxChunk))
	return err
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// headerOf describes a file without its owner, whose ID has no meaning elsewhere.
func headerOf(fi fs.FileInfo, name, link string) *tar.Header {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: link, Mode: int64(fi.Mode().Perm()), ModTime: fi.ModTime()}
	switch {
	case fi.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case link != "":
		h.Typeflag = tar.TypeSymlink
	default:
		h.Size = fi.Size()
	}
	return h
}

// unpack creates the files of a tar archive below a directory, which is made if necessary. A name that leads out of it is
// refused. Links of the archive that may lead out are created last, at the paths that their names had without them, so that
// no other entry is written through them. Links that already exist are followed. Entries before an error stay.
func unpack(dir string, archive io.Reader) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Chdir(dir); err != nil {
		return err
	}
	defer leaveDir()
	u := unpacker{r: tar.NewReader(archive)}
	for {
		h, err := u.r.Next()
		if errors.Is(err, io.EOF) {
			return errors.Join(u.makeLinks(), u.setModes())
		}
		if err == nil {
			err = u.addEntry(h)
		}
		if err != nil {
			return err
		}
	}
}

type unpacker struct {
	r     *tar.Reader
	links []deferredEntry // links that may lead out of the directory
	dirs  []deferredEntry // directories whose permissions are set last, because they may forbid creating files
}

// deferredEntry is an entry that is finished after all others. Its path had no links when the entry was read. A later entry cannot
// redirect it, because the archive can only replace links by links.
type deferredEntry struct {
	at   string
	mode fs.FileMode // of a directory
	to   string      // of a link
}

func (u *unpacker) addEntry(h *tar.Header) error {
	if !filepath.IsLocal(h.Name) {
		return &Failure{Errno: unix.EINVAL, Message: fmt.Sprintf("the archive names %q, which is not below the folder", h.Name)}
	}
	switch at := path.Clean(h.Name); h.Typeflag {
	case tar.TypeDir:
		real, err := realDir(at)
		if err != nil || real != at && os.Getuid() == 0 {
			return err // the permissions of a directory behind a link are not of the archive's making, and root may change all
		}
		u.dirs = append(u.dirs, deferredEntry{at: real, mode: fs.FileMode(h.Mode).Perm()})
		return nil
	case tar.TypeReg:
		return write(at, fs.FileMode(h.Mode).Perm(), false, u.r)
	case tar.TypeSymlink:
		if leadsOut(h.Linkname) {
			dir, name := split(at)
			real, err := realDir(path.Clean(dir))
			u.links = append(u.links, deferredEntry{at: path.Join(real, name), to: h.Linkname})
			return err
		}
		return symlink(h.Linkname, at)
	case tar.TypeXGlobalHeader: // of git archive
		return nil
	}
	return &Failure{Errno: unix.EINVAL, Message: fmt.Sprintf("%q in the archive is neither a file, a directory nor a symbolic link", h.Name)}
}

// realDir makes a directory if necessary, and returns its path without links.
func realDir(at string) (string, error) {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(at)
}

// leadsOut reports whether a link may lead out of its directory.
func leadsOut(to string) bool {
	return strings.HasPrefix(to, "/") || slices.Contains(strings.Split(to, "/"), "..")
}

func (u *unpacker) makeLinks() error {
	for _, l := range u.links {
		if err := symlink(l.to, l.at); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) setModes() error {
	for _, d := range slices.Backward(u.dirs) {
		if err := setMode(d.at, d.mode); err != nil {
			return err
		}
	}
	return nil
}

// setMode sets the permissions of a directory. For root, whom every file obeys, a link that has been put into its path since is refused.
func setMode(at string, mode fs.FileMode) error {
	if os.Getuid() != 0 {
		return os.Chmod(at, mode)
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, at, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fchmod(fd, uint32(mode.Perm()))
}

// symlink makes a symbolic link, and replaces an existing one.
func symlink(to, at string) error {
	if parent, _ := split(at); parent != "" {
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	if _, err := os.Readlink(at); err == nil {
		if err := unix.Unlink(at); err != nil {
			return err
		}
	}
	return os.Symlink(to, at)
}

package worker

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// errNotRegular refuses files that could block a reader or be changed by reading: pipes, sockets, devices.
var errNotRegular = &Failure{Errno: unix.EINVAL, Message: "not a regular file"}

// openRegular opens a file for reading without blocking, as opening a pipe would.
func openRegular(path string, flags int) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, unix.ENXIO) { // a socket, or a device that does not exist
		return nil, nil, errNotRegular
	}
	if err != nil {
		return nil, nil, err
	}
	fi, err := f.Stat()
	switch {
	case err != nil:
	case fi.IsDir():
		err = unix.EISDIR
	case !fi.Mode().IsRegular():
		err = errNotRegular
	default:
		err = holdsFiles(f)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, fi, nil
}

// read sends a part of a file. After a late error, the content has no end marker.
func (s *server) read(path string, offset, length int64) error {
	f, fi, err := openRegular(path, os.O_RDONLY)
	if err != nil {
		return s.answer(Answer{}, err)
	}
	defer f.Close()
	if offset > 0 {
		if _, err := f.Seek(offset, io.SeekStart); err != nil {
			return s.answer(Answer{}, err)
		}
	}
	info := infoOf(fi)
	if err := s.answer(Answer{Info: &info}, nil); err != nil {
		return err
	}
	content := &ContentWriter{W: s.out}
	if _, err := io.CopyBuffer(onlyWriter{content}, io.LimitReader(f, length), make([]byte, MaxChunk)); err != nil {
		return err
	}
	return content.Close()
}

// onlyWriter and onlyReader hide the methods with which io.Copy would bypass its buffer.
type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)

// write creates a file or replaces its content, like > in a shell, except that the content first goes to a temporary file
// beside the target, so that incomplete content changes nothing. A link at the target is followed. Missing directories are
// made.
//
// A file with other names (hard links), another owner, extended attributes or an unwritable directory is not replaced: its
// content is overwritten when all has arrived.
func write(path string, mode fs.FileMode, content io.Reader) error {
	target, err := follow(path)
	if err != nil {
		return err
	}
	old, err := os.Lstat(target)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := writable(target, old); err != nil {
		return err
	}
	dir, name := split(target)
	if dir == "" {
		dir = "."
	}
	if old == nil {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if mode = mode.Perm(); mode == 0 {
		mode = 0o644
	}
	temporary, err := stage(root, content)
	if old != nil && errors.Is(err, fs.ErrPermission) {
		return viaHome(target, content)
	}
	if err != nil {
		return err
	}
	defer func() { _ = root.Remove(temporary) }() // fails after the rename
	if old != nil && !replaceable(target, old) {
		return overwrite(target, root, temporary)
	}
	if old != nil {
		mode = old.Mode().Perm()
	}
	if err := root.Chmod(temporary, mode); err != nil {
		return err
	}
	return root.Rename(temporary, name)
}

// maxLinks is how many symbolic links a path may have, as in the kernel.
const maxLinks = 40

// follow follows links in the last element of a path. The result may not exist.
func follow(path string) (string, error) {
	if strings.HasSuffix(path, "/") {
		return "", unix.EISDIR
	}
	for range maxLinks {
		to, err := os.Readlink(path)
		if err != nil {
			return path, nil //nolint:nilerr // not a link
		}
		if !strings.HasPrefix(to, "/") {
			dir, _ := split(path)
			to = dir + to
		}
		path = to
	}
	return "", unix.ELOOP
}

// writable refuses targets that > in a shell could not write to, and anything but regular files. old is nil for a new file.
func writable(target string, old fs.FileInfo) error {
	_, name := split(target)
	switch {
	case strings.HasSuffix(target, "/"), name == ".", name == "..":
		return unix.EISDIR
	case old == nil:
		return nil
	case old.IsDir():
		return unix.EISDIR
	case !old.Mode().IsRegular():
		return errNotRegular
	}
	return unix.Access(target, unix.W_OK)
}

// replaceable reports whether a rename over the file loses only its content.
func replaceable(path string, fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || st.Nlink != 1 || int(st.Uid) != os.Getuid() || int(st.Gid) != os.Getgid() {
		return false
	}
	attributes, err := unix.Llistxattr(path, nil)
	return err != nil || attributes == 0
}

// stage writes content to a temporary file in a directory.
func stage(dir *os.Root, content io.Reader) (name string, err error) {
	name = ".boxgate-" + rand.Text()
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	_, err = io.CopyBuffer(onlyWriter{f}, onlyReader{content}, make([]byte, MaxChunk))
	if err = errors.Join(err, f.Close()); err != nil {
		_ = dir.Remove(name)
		return "", err
	}
	return name, nil
}

// viaHome overwrites a file in an unwritable directory. The content is staged in the home directory.
func viaHome(target string, content io.Reader) error {
	home, err := os.OpenRoot(Home)
	if err != nil {
		return err
	}
	defer home.Close()
	temporary, err := stage(home, content)
	if err != nil {
		return err
	}
	defer func() { _ = home.Remove(temporary) }()
	return overwrite(target, home, temporary)
}

// overwrite copies a temporary file into an existing file.
func overwrite(target string, dir *os.Root, temporary string) error {
	from, err := dir.Open(temporary)
	if err != nil {
		return err
	}
	defer from.Close()
	to, _, err := openRegular(target, os.O_WRONLY|os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(onlyWriter{to}, onlyReader{from}, make([]byte, MaxChunk))
	return errors.Join(err, to.Close())
}

// Home is the home directory of the box's user.
const Home = "/workspace/home"

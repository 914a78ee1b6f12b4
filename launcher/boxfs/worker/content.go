package worker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"boxgate/launcher/files"
	"boxgate/launcher/rootfs"
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
	info := infoOf(fi, &owners{})
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
// content is overwritten when all has arrived. With own, the file belongs to the user afterwards; only root can take files of others.
// A written file has no set-user-ID or set-group-ID bit.
func write(path string, mode fs.FileMode, own bool, content io.Reader) error {
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
	temporary, staged, err := stage(root, content)
	if old != nil && errors.Is(err, fs.ErrPermission) {
		return viaHome(target, own, content)
	}
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(staged.Close(), root.Remove(temporary)) }() // fails after the rename
	if old != nil && !replaceable(target, old, own) {
		return overwrite(target, own, staged)
	}
	if old != nil {
		mode = old.Mode().Perm()
	}
	if err := errors.Join(staged.Chmod(mode), staged.Close()); err != nil {
		return err
	}
	return root.Rename(temporary, name)
}

// maxLinks is how many symbolic links a path may have, as in the kernel.
const maxLinks = 40

// follow follows links in the last element of a path. The result may not exist. Links that another user has left in a directory like /tmp are
// refused, as the kernel refuses them by default (fs.protected_symlinks): they could lead a file of root's astray.
func follow(path string) (string, error) {
	if strings.HasSuffix(path, "/") {
		return "", unix.EISDIR
	}
	for range maxLinks {
		to, err := readLink(path)
		if errors.Is(err, errForeignLink) {
			return "", err
		}
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

// errForeignLink refuses a link of another user.
var errForeignLink = &Failure{Errno: unix.EACCES, Message: "a link that another user has left in a directory where everyone may write is not followed"}

// readLink returns the target of a link.
func readLink(path string) (string, error) {
	link, err := os.OpenFile(path, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer link.Close()
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(link.Fd()), "", target)
	if err != nil {
		return "", err
	}
	dir, _ := split(path)
	var in, st unix.Stat_t
	if err := errors.Join(unix.Fstat(int(link.Fd()), &st), unix.Stat(cmp.Or(dir, "."), &in)); err != nil {
		return "", errForeignLink
	}
	const shared = unix.S_ISVTX | unix.S_IWOTH
	if in.Mode&shared == shared && st.Uid != in.Uid && int(st.Uid) != os.Getuid() {
		return "", errForeignLink
	}
	return string(target[:n]), nil
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

// replaceable reports whether a rename over the file loses only its content, and with own its owner.
func replaceable(path string, fi fs.FileInfo, own bool) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || st.Nlink != 1 || !own && !isOwn(st) {
		return false
	}
	attributes, err := unix.Llistxattr(path, nil)
	return err != nil || attributes == 0
}

// isOwn reports whether a file belongs to the user and the user's group.
func isOwn(st *syscall.Stat_t) bool { return int(st.Uid) == os.Getuid() && int(st.Gid) == os.Getgid() }

// stage writes content to a temporary file in a directory. The file stays open, because others may exchange it in their directories.
func stage(dir *os.Root, content io.Reader) (name string, f *os.File, err error) {
	name = ".boxgate-" + rand.Text()
	if f, err = dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return "", nil, err
	}
	if _, err = io.CopyBuffer(onlyWriter{f}, onlyReader{content}, make([]byte, MaxChunk)); err != nil {
		_ = errors.Join(f.Close(), dir.Remove(name))
		return "", nil, err
	}
	return name, f, nil
}

// viaHome overwrites a file in an unwritable directory. The content is staged in the home directory.
func viaHome(target string, own bool, content io.Reader) error {
	dir, err := os.OpenRoot(home)
	if err != nil {
		return err
	}
	defer dir.Close()
	temporary, staged, err := stage(dir, content)
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(staged.Close(), dir.Remove(temporary)) }()
	return overwrite(target, own, staged)
}

// overwrite copies a temporary file into an existing file.
func overwrite(target string, own bool, from *os.File) error {
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	to, fi, err := openRegular(target, os.O_WRONLY|os.O_TRUNC|unix.O_NOFOLLOW) // a link here was put there after follow
	if err != nil {
		return err
	}
	if err := disarm(to, fi, own); err != nil {
		to.Close()
		return err
	}
	_, err = io.CopyBuffer(onlyWriter{to}, onlyReader{from}, make([]byte, MaxChunk))
	return errors.Join(err, to.Close())
}

// disarm prepares a file for new content: with own it becomes the user's, and it loses its set-user-ID and set-group-ID bits. The
// kernel removes them when a user writes, but not when root does.
func disarm(f *os.File, fi fs.FileInfo, own bool) error {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if own && (!ok || !isOwn(st)) {
		if err := f.Chown(os.Getuid(), os.Getgid()); err != nil {
			return err
		}
	}
	if os.Getuid() != 0 || fi.Mode()&(fs.ModeSetuid|fs.ModeSetgid) == 0 {
		return nil
	}
	return f.Chmod(fi.Mode().Perm())
}

// Home is the home directory of the box's user, unless the box was made with another one.
const Home = "/workspace/home"

// home is the home directory of the user of the box that this process is confined to.
var home = Home

// HomeDir returns the home directory of the user of the box that [Confine] has confined this process to.
func HomeDir() string { return home }

func stat(path string, follow bool) (Answer, error) {
	fi, target, err := statPath(path, follow)
	if err != nil {
		return Answer{}, err
	}
	info := infoOf(fi, &owners{})
	info.Target, info.Attributes = target, attributes(path, follow)
	return Answer{Info: &info}, nil
}

// infoOf converts the result of stat(2).
func infoOf(fi fs.FileInfo, names *owners) Info {
	info := Info{Name: []byte(fi.Name()), Type: "other", IsDir: fi.IsDir(), Size: fi.Size(), Mode: uint32(fi.Mode().Perm()), Time: fi.ModTime().UnixNano()}
	switch {
	case fi.IsDir():
		info.Type = "directory"
	case fi.Mode().IsRegular():
		info.Type = "file"
	case fi.Mode()&fs.ModeSymlink != 0:
		info.Type = "symlink"
	}
	names.describe(&info, fi)
	return info
}

// Bounds of a list, in bytes, because the answer is held in memory.
const (
	maxNames  = 4 << 20 // of the names
	maxExtras = 1 << 20 // of the targets of links and the attributes
)

// list reads up to most entries of a directory of any size: the first ones in the directory's own order, sorted.
func list(path string, most int) (Answer, error) {
	dir, err := openDir(path, 0)
	if err != nil {
		return Answer{}, err
	}
	defer dir.Close()
	var a Answer
	var names owners
	for length, extras := 0, 0; ; {
		entries, err := dir.ReadDir(256)
		for _, e := range entries {
			if length += len(e.Name()); len(a.Entries) >= most || length > maxNames {
				a.Truncated = true
				return a, nil
			}
			if info, err := entry(path, e.Name(), &names); err == nil { // otherwise it has been removed
				if extras += sizeOf(info); extras > maxExtras {
					info.Target, info.Attributes = nil, nil
				}
				a.Entries = append(a.Entries, info)
			}
		}
		if errors.Is(err, io.EOF) {
			slices.SortFunc(a.Entries, func(a, b Info) int { return strings.Compare(string(a.Name), string(b.Name)) })
			return a, nil
		}
		if err != nil {
			return Answer{}, err
		}
	}
}

// entry describes one entry of a directory.
func entry(dir, name string, names *owners) (Info, error) {
	path := dir + "/" + name
	fi, err := os.Lstat(path)
	if err != nil {
		return Info{}, err
	}
	info := infoOf(fi, names)
	if info.Type == "symlink" {
		if target, err := os.Readlink(path); err == nil {
			info.Target = []byte(target)
		}
		if to, _, err := statPath(path, true); err == nil {
			info.IsDir, info.Size = to.IsDir(), to.Size()
		}
	} else if info.Type != "other" {
		info.Attributes = attributes(path, false)
	}
	return info, nil
}

// sizeOf returns the length of the target and the attributes of a file, in bytes.
func sizeOf(info Info) int {
	n := len(info.Target)
	for name, value := range info.Attributes {
		n += len(name) + len(value)
	}
	return n
}

func makeDir(path string, parents bool) error {
	if parents {
		return os.MkdirAll(path, 0o755)
	}
	return os.Mkdir(path, 0o755)
}

// remove removes a file or an empty directory; if recursive, also a directory with everything below it. Links are removed,
// not followed.
func remove(path string, recursive bool) error {
	dir, name := split(path)
	if name == "" || name == "." || name == ".." {
		return &Failure{Errno: unix.EINVAL, Message: "the path must end in the name of what to remove"}
	}
	parent, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer parent.Close()
	fd := int(parent.Fd())
	err = unix.Unlinkat(fd, name, 0)
	if err == nil || !errors.Is(err, unix.EISDIR) {
		return err
	}
	err = unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
	if recursive && (errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST)) {
		return files.RemoveEntry(context.Background(), parent, name)
	}
	return err
}

// split splits a path before its last name. Unlike path.Split with path.Clean it keeps "..", which may follow a link.
func split(path string) (dir, name string) {
	path = strings.TrimRight(path, "/")
	i := strings.LastIndexByte(path, '/')
	return path[:i+1], path[i+1:]
}

// fileSystems are the types of file systems that hold files of a box: its root, and memory.
var fileSystems = []int64{unix.OVERLAYFS_SUPER_MAGIC, unix.TMPFS_MAGIC}

// errSpecial refuses files that the kernel generates, as in procfs: below /proc/sys it shows each process its own
// namespaces, which for a worker are the host's.
var errSpecial = &Failure{Errno: unix.EACCES, Message: "not a file of the box but of the kernel, as in /proc and /sys: only commands in the box can use it"}

// holdsFiles fails if an open file is in a file system of the kernel.
func holdsFiles(f *os.File) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return err
	}
	if !slices.Contains(fileSystems, st.Type) {
		return errSpecial
	}
	return nil
}

// statPath describes the file at a path, and returns the target of a symbolic link. It opens it only with O_PATH.
func statPath(path string, follow bool) (fi fs.FileInfo, target []byte, err error) {
	flags := unix.O_PATH
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if err := holdsFiles(f); err != nil {
		return nil, nil, err
	}
	if fi, err = f.Stat(); err == nil && fi.Mode()&fs.ModeSymlink != 0 {
		target = make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(f.Fd()), "", target)
		return fi, bytes.Clone(target[:max(n, 0)]), err
	}
	return fi, nil, err
}

// openDir opens a directory for reading.
func openDir(path string, flags int) (*os.File, error) {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|flags, 0)
	if err != nil {
		return nil, err
	}
	if err := holdsFiles(dir); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// entriesOf returns the entries of a directory, sorted. A link is not followed.
func entriesOf(path string) ([]fs.DirEntry, error) {
	dir, err := openDir(path, unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// renew adds roots to the certificates of the box.
func renew(ca, roots []byte) error {
	root, err := rootfs.OpenRunning(holdsFiles)
	if err != nil {
		return err
	}
	return errors.Join(root.Renew(ca, roots), root.Close())
}

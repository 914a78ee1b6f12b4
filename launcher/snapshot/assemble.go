package snapshot

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// item is an entry of the tree at the moment of the freeze, with the IDs and attributes of the layer.
type item struct {
	Leave    bool   // marks the end of a directory; the other fields are empty
	Name     string // "" for the top
	Mode     uint32
	Rdev     uint64
	UID, GID uint32
	Modified unix.Timespec
	Attrs    []attr
	Target   string // of a symbolic link
	Body     string // name of the file's body, which already has all of the above
	Shared   bool   // it has other names
}

func (it item) isDir() bool { return it.Mode&unix.S_IFMT == unix.S_IFDIR }

// list writes the entries of a tree to a file, because a box may have too many to keep in memory.
type list struct {
	file *os.File
	buf  *bufio.Writer
	enc  *gob.Encoder
}

func newList(dir *os.File) (*list, error) {
	fd, err := unix.Openat(int(dir.Fd()), listFile, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	l := &list{file: os.NewFile(uintptr(fd), listFile)}
	l.buf = bufio.NewWriterSize(l.file, 256<<10)
	l.enc = gob.NewEncoder(l.buf)
	return l, nil
}

func (l *list) add(it item) error { return l.enc.Encode(it) }

func (l *list) close() error { return errors.Join(l.buf.Flush(), l.file.Close()) }

// assemble builds the tree from the list and the bodies.
func (c *capture) assemble(ctx context.Context) error {
	f, err := openAt(c.to, listFile, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	a := assembly{dirs: []place{{dir: c.to}}, bodies: c.bodies.dir}
	defer a.close()
	for dec := gob.NewDecoder(bufio.NewReaderSize(f, 256<<10)); ; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var it item
		if err := dec.Decode(&it); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := a.add(it); err != nil {
			return fmt.Errorf("%q: %w", it.Name, err)
		}
	}
}

// assembly is a tree being built: the stack of open directories.
type assembly struct {
	dirs   []place
	bodies *os.File
}

// place is a directory that is being filled, and its final attributes.
type place struct {
	dir *os.File
	it  item
}

func (a *assembly) close() {
	for _, p := range a.dirs[1:] {
		p.dir.Close()
	}
}

// add adds the next entry.
func (a *assembly) add(it item) error {
	dir := a.dirs[len(a.dirs)-1].dir
	switch {
	case it.Leave:
		return a.leaveDir()
	case it.isDir():
		return a.enterDir(dir, it)
	case it.Body != "":
		return a.placeBody(dir, it)
	}
	if err := makeNode(dir, it); err != nil {
		return err
	}
	return finish(linkPath(dir, it.Name), it)
}

// enterDir creates a directory; the following entries are in it.
func (a *assembly) enterDir(dir *os.File, it item) error {
	if it.Name == "" {
		it.Name = treeDir
	}
	if err := unix.Mkdirat(int(dir.Fd()), it.Name, 0o700); err != nil {
		return err
	}
	d, err := openAt(dir, it.Name, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	a.dirs = append(a.dirs, place{d, it})
	return nil
}

// leaveDir completes a directory. Its time is set last, because adding entries changes it.
func (a *assembly) leaveDir() error {
	last := a.dirs[len(a.dirs)-1]
	a.dirs = a.dirs[:len(a.dirs)-1]
	defer last.dir.Close()
	return finish(linkPath(a.dirs[len(a.dirs)-1].dir, last.it.Name), last.it)
}

// placeBody moves a body to its name. A body with other names is linked, so that it stays for these. If the file system's limit
// of links is reached, this is the last name of the original, and the body itself is moved.
func (a *assembly) placeBody(dir *os.File, it item) error {
	if it.Shared {
		err := unix.Linkat(int(a.bodies.Fd()), it.Body, int(dir.Fd()), it.Name, 0)
		if !errors.Is(err, unix.EMLINK) {
			return err
		}
	}
	return unix.Renameat(int(a.bodies.Fd()), it.Body, int(dir.Fd()), it.Name)
}

// makeNode creates an entry that is neither a file nor a directory.
func makeNode(dir *os.File, it item) error {
	if it.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.Symlinkat(it.Target, int(dir.Fd()), it.Name)
	}
	return unix.Mknodat(int(dir.Fd()), it.Name, it.Mode, int(it.Rdev))
}

// finish sets the owner, mode, attributes and time of an entry.
func finish(path string, it item) error {
	if err := unix.Lchown(path, int(it.UID), int(it.GID)); err != nil {
		return err
	}
	if it.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(path, it.Mode&0o7777); err != nil {
			return err
		}
	}
	if err := writeAttrs(path, it.Attrs); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{it.Modified, it.Modified}, unix.AT_SYMLINK_NOFOLLOW)
}

package worker

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// tree is the watched directories. The kernel watches inodes, whose paths change when a directory is moved; the tree knows the path of
// each. An event reports the past, and the box may have changed the directory since. So the tree never follows an event, but looks for
// the directory with its name ([tree.check]). The last change of a name has the last event; after it, the tree is right.
type tree struct {
	root      string // path
	recursive bool
	w         *watcher

	fd      int // of inotify
	top     *node
	nodes   map[int32]*node
	moved   map[*node]struct{} // have lost their place, and may have another one in the tree
	pending []*node            // to be scanned
	again   []*node            // could not be found where they should be
	full    bool               // a directory was left out because of MaxWatched
}

// node is a watched directory.
type node struct {
	wd       int32 // of the watch
	dev, ino uint64
	parent   *node // nil: the top, or moved
	name     string
	children map[string]*node
	scanned  bool
	missed   bool // had events while it had no place
}

// open starts with the directory at the root.
func (t *tree) open() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	t.fd, t.nodes, t.moved, t.pending, t.again, t.full = fd, map[int32]*node{}, map[*node]struct{}{}, nil, nil, false
	dir, err := openDir(t.root, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	t.top, err = t.watch(dir)
	if err == nil && t.recursive {
		t.pending = []*node{t.top}
	}
	return err
}

// close ends all watches.
func (t *tree) close() {
	if t.nodes != nil {
		unix.Close(t.fd)
		t.nodes = nil
	}
}

// watch watches an open directory. It returns the node of a directory that is watched already. The kernel accepts a path only, and the
// box can exchange any: so the directory becomes the working directory until the call returns. A removed directory that is in use for longer
// has no event of its removal.
func (t *tree) watch(dir *os.File) (*node, error) {
	fi, err := dir.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, unix.EINVAL
	}
	if err := unix.Fchdir(int(dir.Fd())); err != nil {
		return nil, err
	}
	defer func() { _ = os.Chdir("/") }()
	wd, err := unix.InotifyAddWatch(t.fd, ".", watchMask)
	if err != nil {
		return nil, err
	}
	n := t.nodes[int32(wd)]
	if n == nil {
		n = &node{wd: int32(wd), dev: st.Dev, ino: st.Ino}
		t.nodes[n.wd] = n
	}
	return n, nil
}

// path returns the path of a directory relative to the root. It returns false for directories that were moved.
func (t *tree) path(n *node) (string, bool) {
	path := ""
	for ; n.parent != nil; n = n.parent {
		if path == "" {
			path = n.name
		} else {
			path = n.name + "/" + path
		}
	}
	return path, n == t.top
}

// errElsewhere means that a directory is not where the tree has it. Events of its moves are queued.
var errElsewhere = errors.New("not there")

// within resolves paths without links and mount points. So no directory has two paths in the tree.
const within = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS

// find opens a watched directory.
func (t *tree) find(n *node) (dir *os.File, path string, err error) {
	path, ok := t.path(n)
	if !ok {
		return nil, "", errElsewhere
	}
	dir, err = openDir(t.root, 0)
	if err == nil && path != "" {
		root := dir
		dir, err = openWithin(root, path)
		root.Close()
	}
	if err != nil {
		return nil, "", errElsewhere
	}
	var st unix.Stat_t
	if unix.Fstat(int(dir.Fd()), &st) != nil || st.Ino != n.ino || st.Dev != n.dev {
		dir.Close()
		return nil, "", errElsewhere
	}
	return dir, path, nil
}

// openWithin opens a directory below another one.
func openWithin(dir *os.File, path string) (*os.File, error) {
	fd, err := unix.Openat2(int(dir.Fd()), path, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: within})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// check looks which directory has a name in a watched directory, if any, and watches it.
func (t *tree) check(parent *node, name string) error {
	if !t.recursive {
		return nil
	}
	dir, path, err := t.find(parent)
	if err != nil {
		t.again = append(t.again, parent)
		return nil
	}
	defer dir.Close()
	return t.checkIn(dir, parent, path, name)
}

// checkIn is check with the open directory and its path.
func (t *tree) checkIn(dir *os.File, parent *node, path, name string) error {
	full := join(path, name)
	if len(full) > maxWatchedPath {
		return t.w.unwatched(full)
	}
	child, err := openWithin(dir, name)
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		t.leave(parent.children[name])
		return t.w.unwatched(full)
	case err != nil: // missing, no directory, a link, or another file system
		t.leave(parent.children[name])
		return nil
	}
	defer child.Close()
	n, err := t.watch(child)
	if err == nil && len(t.nodes) > MaxWatched {
		t.forget(n)
		err = unix.ENOSPC
	}
	if err != nil {
		t.leave(parent.children[name])
		t.full = t.full || errors.Is(err, unix.ENOSPC)
		return t.w.unwatched(full)
	}
	return t.place(n, parent, name)
}

// place gives a directory its place in the tree. A new one is scanned, and one that was moved if it or a directory below has missed events.
func (t *tree) place(n, parent *node, name string) error {
	if n.parent == parent && n.name == name {
		return nil
	}
	for above := parent; above != nil; above = above.parent {
		if above == n { // it was moved below a directory that was below it: events are queued
			t.again = append(t.again, parent)
			return nil
		}
	}
	if other := parent.children[name]; other != nil {
		t.leave(other)
	}
	if n.parent != nil {
		delete(n.parent.children, n.name)
	}
	delete(t.moved, n)
	n.parent, n.name = parent, name
	if parent.children == nil {
		parent.children = map[string]*node{}
	}
	parent.children[name] = n
	if !n.scanned {
		t.pending = append(t.pending, n)
		return nil
	}
	return t.recover(n)
}

// recover scans the directories again that had events while they had no place in the tree.
func (t *tree) recover(n *node) error {
	if n.missed {
		n.missed = false
		t.pending = append(t.pending, n)
		if path, ok := t.path(n); ok {
			if err := t.w.unwatched(path); err != nil {
				return err
			}
		}
	}
	for _, child := range n.children {
		if err := t.recover(child); err != nil {
			return err
		}
	}
	return nil
}

// leave takes a directory off its place. It stays watched until [tree.dropMoved], because it may have got another place.
func (t *tree) leave(n *node) {
	if n == nil || n.parent == nil {
		return
	}
	delete(n.parent.children, n.name)
	n.parent = nil
	t.moved[n] = struct{}{}
}

// forget ends the watch of a directory.
func (t *tree) forget(n *node) {
	t.leave(n)
	for _, child := range n.children {
		t.leave(child)
	}
	delete(t.moved, n)
	delete(t.nodes, n.wd)
	_, _ = unix.InotifyRmWatch(t.fd, uint32(n.wd)) // fails if the directory was removed
}

// dropMoved ends the watches of the directories that have no place.
func (t *tree) dropMoved() {
	for len(t.moved) > 0 {
		for n := range t.moved {
			t.forget(n)
		}
	}
}

// scanAll scans all pending directories, and the directories that it finds there.
func (t *tree) scanAll() error {
	for len(t.pending) > 0 && !(t.full && !t.w.begun) {
		last := len(t.pending) - 1
		n := t.pending[last]
		t.pending = t.pending[:last]
		if err := t.scan(n); err != nil {
			return err
		}
	}
	return nil
}

// scan finds the directories in one that is watched already, so that none is missed that is made in the meantime, and reports its files if
// it is new.
func (t *tree) scan(n *node) error {
	if _, ok := t.path(n); !ok {
		n.missed = n.scanned // for its next place, if it gets one
		return nil
	}
	dir, path, err := t.find(n)
	if err != nil {
		t.again = append(t.again, n)
		return nil
	}
	defer dir.Close()
	known := n.scanned
	n.scanned = true
	here := map[string]bool{}
	for {
		entries, err := dir.ReadDir(256)
		for _, e := range entries {
			if !known {
				if err := t.w.found(n, path, e.Name()); err != nil {
					return err
				}
			}
			if e.IsDir() {
				if err := t.checkIn(dir, n, path, e.Name()); err != nil {
					return err
				}
				if n.children[e.Name()] != nil { // at most as many as may be watched, unlike the directories of a hostile box
					here[e.Name()] = true
				}
			}
		}
		if err != nil { // the end, or the directory was removed
			break
		}
	}
	for name, child := range n.children {
		if !here[name] {
			t.leave(child)
		}
	}
	return nil
}

// handleSelf handles an event of a directory itself.
func (t *tree) handleSelf(n *node, mask uint32) error {
	switch {
	case n == t.top && mask&(unix.IN_DELETE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
		return errRemoved
	case n == t.top && mask&unix.IN_MOVE_SELF != 0:
		return errMoved
	case mask&unix.IN_IGNORED != 0:
		t.forget(n)
	}
	return nil
}

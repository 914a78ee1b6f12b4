package worker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The bounds of a watch. The kernel counts instances of inotify, their watches and the memory of queued events for the user and the
// control group of the worker, so a box takes them from its own.
const (
	// MaxWatched is the maximum number of directories of a watch.
	MaxWatched = 8192
	// maxWatchedPath is the longest path of a directory below the watched one, in bytes.
	maxWatchedPath = 3000
	// maxEvents and maxEventBytes bound an answer. The length of names counts.
	maxEvents     = 256
	maxEventBytes = 64 << 10
	// maxFresh is how many creates that a scan has reported are remembered, so that they are not reported again.
	maxFresh = 16 << 10
	// watchPause is the time for each maxEvents events of the kernel, so that there are 25,600 a second at most, apart from the files that
	// a scan finds. It bounds the work of their readers; events wait in the kernel's queue.
	watchPause = 10 * time.Millisecond
)

// The kinds of events, see [boxgate/api/files].
const (
	EventCreate   = "create"
	EventWrite    = "write"
	EventRemove   = "remove"
	EventRename   = "rename"
	EventChmod    = "chmod"
	EventOverflow = "overflow"
)

// Event is a change in a watched directory.
type Event struct {
	Kind  string
	Name  []byte `json:",omitempty"` // relative to the directory; of an overflow: the directory that is not watched, or has lost events
	Entry *Info  `json:",omitempty"`
}

// The errors that end a watch or keep it from beginning.
var (
	errRemoved = &Failure{Errno: unix.ENOENT, Message: "the directory was removed"}
	errMoved   = &Failure{Errno: unix.ENOENT, Message: "the directory was moved"}
	errCrowded = &Failure{Errno: unix.ENOSPC, Message: "has more directories than one watch can have; watch a part of it"}
	errHungUp  = errors.New("the caller has gone")
)

// watchMask selects the events of a directory. Files that were removed and are still open have none.
const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

// watch answers once the watch is in place, then with events, and at last with the reason of its end. A caller who closes the input ends
// the process.
func (s *server) watch(req Request) error {
	if s.file == nil {
		return errors.New("a watch needs an input whose end can be awaited")
	}
	w := &watcher{tree: tree{root: string(req.Path), recursive: req.Recursive}, entries: req.Entries, out: s.out, in: s.file}
	err := w.begin()
	if err == nil {
		if err := s.answer(Answer{}, nil); err != nil {
			return err
		}
		w.begun = true
		err = w.run()
	}
	w.tree.close()
	if errors.Is(err, errHungUp) {
		return nil
	}
	if sent := new(sendError); errors.As(err, &sent) {
		return sent.error
	}
	return s.answer(Answer{}, err)
}

// sendError is an error of the stream to the caller.
type sendError struct{ error }

// watcher is a running watch.
type watcher struct {
	tree    tree
	entries bool
	out     io.Writer
	in      *os.File // ends when the caller has gone

	begun  bool // the caller knows that the watch is in place
	silent bool // scans report no creates
	resets int  // how often the instance of inotify was replaced
	events []Event
	bytes  int    // of names in events
	names  owners // of events
	fresh  map[freshName]struct{}
}

// freshName is a file whose creation a scan has reported, while an event of it may still be queued.
type freshName struct {
	dir  int32
	name string
}

// begin watches the directory and, if asked, all below it.
func (w *watcher) begin() error {
	w.tree.w, w.silent = w, true
	defer func() { w.silent = false }()
	if err := w.tree.open(); err != nil {
		return err
	}
	if err := w.tree.scanAll(); err != nil {
		return err
	}
	if w.tree.full {
		return errCrowded
	}
	return nil
}

// run reports events until the watch ends.
func (w *watcher) run() error {
	if err := w.flush(); err != nil { // directories that cannot be watched
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		if err := w.wait(-1); err != nil {
			return err
		}
		n, err := unix.Read(w.tree.fd, buf)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return err
		}
		end := w.handleAll(buf[:n])
		if end == nil && w.wait(0) == errQuiet {
			end = w.settle()
		}
		if err := w.flush(); err != nil {
			return err
		}
		if end != nil {
			return end
		}
		time.Sleep(watchPause * time.Duration(1+countEvents(buf[:n])/maxEvents))
	}
}

// errQuiet is returned by wait if no event came in time.
var errQuiet = errors.New("no event")

// wait waits for events. A timeout of -1 means for ever, 0 not at all.
func (w *watcher) wait(timeout int) error {
	fds := []unix.PollFd{{Fd: int32(w.tree.fd), Events: unix.POLLIN}, {Fd: int32(w.in.Fd()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, timeout)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case fds[1].Revents != 0:
			return errHungUp
		case n == 0:
			return errQuiet
		default:
			return nil
		}
	}
}

// handleAll handles the events of one read, up to a resync.
func (w *watcher) handleAll(buf []byte) error {
	for resets := w.resets; len(buf) >= unix.SizeofInotifyEvent && w.resets == resets; {
		e := rawEvent{dir: int32(binary.NativeEndian.Uint32(buf)), mask: binary.NativeEndian.Uint32(buf[4:])}
		length := int(binary.NativeEndian.Uint32(buf[12:]))
		name := buf[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+length]
		buf = buf[unix.SizeofInotifyEvent+length:]
		e.name = string(bytes.TrimRight(name, "\x00"))
		if err := w.handle(e); err != nil {
			return err
		}
	}
	return nil
}

// countEvents returns the number of events of one read.
func countEvents(buf []byte) (n int) {
	for len(buf) >= unix.SizeofInotifyEvent {
		buf = buf[unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(buf[12:])):]
		n++
	}
	return n
}

// rawEvent is an event of inotify(7).
type rawEvent struct {
	dir  int32
	mask uint32
	name string
}

func (w *watcher) handle(e rawEvent) error {
	if e.mask&unix.IN_Q_OVERFLOW != 0 {
		return w.resync()
	}
	dir := w.tree.nodes[e.dir]
	if dir == nil {
		return nil // no longer watched
	}
	if e.name == "" {
		return w.tree.handleSelf(dir, e.mask)
	}
	path, ok := w.tree.path(dir)
	if !ok {
		dir.missed = true // it was moved, perhaps within the watched directory
		return nil
	}
	if err := w.report(dir, path, e); err != nil {
		return err
	}
	if e.mask&unix.IN_ISDIR == 0 || e.mask&unix.IN_MODIFY != 0 || e.mask&unix.IN_ATTRIB != 0 && dir.children[e.name] != nil {
		return nil
	}
	if err := w.tree.check(dir, e.name); err != nil {
		return err
	}
	return w.tree.scanAll()
}

// report adds the event that the caller sees.
func (w *watcher) report(dir *node, path string, e rawEvent) error {
	key, path := freshName{dir.wd, e.name}, join(path, e.name)
	_, known := w.fresh[key]
	switch {
	case e.mask&unix.IN_CREATE != 0 && known: // the file that the scan has found
		delete(w.fresh, key)
		return nil
	case e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		delete(w.fresh, key)
		return w.add(EventCreate, path)
	case e.mask&unix.IN_DELETE != 0:
		delete(w.fresh, key)
		return w.add(EventRemove, path)
	case e.mask&unix.IN_MOVED_FROM != 0:
		delete(w.fresh, key)
		return w.add(EventRename, path)
	case e.mask&unix.IN_MODIFY != 0:
		return w.add(EventWrite, path)
	case e.mask&unix.IN_ATTRIB != 0:
		return w.add(EventChmod, path)
	}
	return nil
}

// found reports a file that a scan has found in a directory that is new to the watch.
func (w *watcher) found(dir *node, path, name string) error {
	if w.silent {
		return nil
	}
	if w.fresh == nil {
		w.fresh = map[freshName]struct{}{}
	}
	if len(w.fresh) < maxFresh {
		w.fresh[freshName{dir.wd, name}] = struct{}{}
	}
	return w.add(EventCreate, join(path, name))
}

// unwatched reports a directory whose changes are not seen.
func (w *watcher) unwatched(path string) error { return w.add(EventOverflow, path) }

// add adds an event, and sends the events once they fill an answer. An event that equals the previous one is dropped.
func (w *watcher) add(kind, path string) error {
	if last := len(w.events) - 1; last >= 0 && kind != EventOverflow && w.events[last].Kind == kind && string(w.events[last].Name) == path {
		return nil
	}
	e := Event{Kind: kind, Name: []byte(path)}
	if w.entries && (kind == EventCreate || kind == EventWrite || kind == EventChmod) {
		if fi, target, err := statPath(w.tree.root+"/"+path, false); err == nil {
			info := infoOf(fi, &w.names)
			info.Target, info.Attributes = target, attributes(w.tree.root+"/"+path, false)
			e.Entry = &info
			w.bytes += sizeOf(info)
		}
	}
	w.events = append(w.events, e)
	if w.bytes += len(path); len(w.events) < maxEvents && w.bytes < maxEventBytes {
		return nil
	}
	if !w.begun {
		w.events, w.bytes = []Event{{Kind: EventOverflow}}, 0 // for the many directories that cannot be watched
		return nil
	}
	return w.flush()
}

// flush sends the events. It waits for the reader: the kernel's queue then grows, and overflows.
func (w *watcher) flush() error {
	events := w.events
	w.events, w.bytes, w.names = nil, 0, owners{}
	if len(events) == 0 {
		return nil
	}
	if err := Send(w.out, Answer{Events: events}); err != nil {
		return &sendError{err}
	}
	return nil
}

// settle runs when no event is queued: directories that could not be scanned are scanned again, and directories that were moved away are
// no longer watched.
func (w *watcher) settle() error {
	clear(w.fresh)
	again := w.tree.again
	w.tree.again = nil
	for _, n := range again {
		if _, ok := w.tree.path(n); ok && w.tree.nodes[n.wd] == n {
			w.tree.pending = append(w.tree.pending, n)
		}
	}
	if err := w.tree.scanAll(); err != nil {
		return err
	}
	if len(w.tree.again) > 0 {
		return w.resync()
	}
	w.tree.dropMoved()
	return nil
}

// resync watches everything anew, and then reports that events were lost.
func (w *watcher) resync() error {
	w.tree.close()
	clear(w.fresh)
	w.resets++
	w.silent = true
	defer func() { w.silent = false }()
	top := w.tree.top.ino
	if err := w.tree.open(); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return errRemoved
		}
		return err
	}
	if w.tree.top.ino != top {
		return errMoved
	}
	if err := w.tree.scanAll(); err != nil {
		return err
	}
	return w.add(EventOverflow, "")
}

// join joins a path relative to the watched directory with a name.
func join(dir, name string) string {
	return strings.TrimPrefix(dir+"/"+name, "/")
}

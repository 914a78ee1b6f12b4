package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/launcher/boxfs"
	"boxgate/launcher/boxfs/worker"
	"boxgate/policy"
)

// boxWatch is a watch of a box in a test. A reader whose gate is closed reads nothing.
type boxWatch struct {
	t       *testing.T
	session *boxfs.Session
	gate    sync.RWMutex
	ended   chan struct{}
	err     error // set when ended is closed

	mu     sync.Mutex
	events []worker.Event
	have   chan struct{} // closed and replaced with each batch
}

// watchBox starts a watch of the box's user that ends with the test.
func watchBox(t *testing.T, l *Launcher, id policy.BoxID, path string) *boxWatch {
	t.Helper()
	return watchBoxAs(t, l, id, "", path)
}

// watchBoxAs starts a watch of a user that ends with the test.
func watchBoxAs(t *testing.T, l *Launcher, id policy.BoxID, user, path string) *boxWatch {
	t.Helper()
	entersAs(t, user)
	s, done, err := l.OpenWatch(t.Context(), id, user)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(done)
	w := &boxWatch{t: t, session: s, ended: make(chan struct{}), have: make(chan struct{})}
	begun := make(chan struct{})
	go func() {
		defer close(w.ended)
		w.err = s.Watch(path, true, true, func(events []worker.Event) error {
			if events == nil {
				close(begun)
			}
			w.gate.RLock()
			defer w.gate.RUnlock()
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, events...)
			close(w.have)
			w.have = make(chan struct{})
			return nil
		})
	}()
	select {
	case <-begun:
	case <-w.ended:
		t.Fatal(w.err)
	}
	return w
}

// await waits for an event, and returns it with all since that of the last call.
func (w *boxWatch) await(kind, name string) (seen []worker.Event) {
	w.t.Helper()
	late := time.After(time.Minute)
	for {
		w.mu.Lock()
		i := slices.IndexFunc(w.events, func(e worker.Event) bool { return e.Kind == kind && string(e.Name) == name })
		if i >= 0 {
			seen, w.events = w.events[:i+1], w.events[i+1:]
		}
		have := w.have
		w.mu.Unlock()
		if i >= 0 {
			return seen
		}
		select {
		case <-have:
		case <-w.ended:
			w.t.Fatalf("the watch has ended before %s %s: %v", kind, name, w.err)
		case <-late:
			w.t.Fatalf("%s %s was not reported", kind, name)
		}
	}
}

// TestWatchInABox: on the box's own file system a watch reports what commands change, with names as the box knows them, and tells of what
// the box's user cannot read.
func TestWatchInABox(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	rootSh(t, l, id, "mkdir -m 700 /workspace/home/closed")
	w := watchBox(t, l, id, "/workspace/home")
	w.await(worker.EventOverflow, "closed")
	sh(t, l, id, "mkdir -p new/deep; echo x > new/deep/f; ln -s f new/deep/link")
	seen := w.await(worker.EventCreate, "new/deep/link")
	sh(t, l, id, "chmod 600 new/deep/f")
	for _, e := range append(seen, w.await(worker.EventChmod, "new/deep/f")...) {
		if e.Entry == nil || e.Entry.Owner != "boxuser" || e.Entry.UID != 1000 {
			t.Errorf("%s %s is described as %+v", e.Kind, e.Name, e.Entry)
		}
		if string(e.Name) == "new/deep/link" && string(e.Entry.Target) != "f" {
			t.Errorf("the link leads to %q", e.Entry.Target)
		}
	}
	rootSh(t, l, id, "echo x >> /workspace/home/new/deep/f; echo y > /workspace/home/of-root")
	for _, e := range w.await(worker.EventWrite, "of-root") {
		if string(e.Name) == "of-root" && (e.Entry == nil || e.Entry.Owner != "root" || e.Entry.Group != "root") {
			t.Errorf("root's file is described as %+v", e.Entry)
		}
	}
	etc := watchBox(t, l, id, "/etc") // a directory of the image, which is copied up when it is changed
	rootSh(t, l, id, "echo x >> /etc/hostname.new; rm /etc/hostname.new; touch /etc/apt/x; echo x >> /etc/passwd")
	etc.await(worker.EventRemove, "hostname.new")
	etc.await(worker.EventWrite, "passwd")
	whole := watchBox(t, l, id, "/") // without other file systems
	sh(t, l, id, "mkdir /tmp/other; touch /tmp/other/f /dev/shm/f; touch end")
	for _, e := range whole.await(worker.EventCreate, "workspace/home/end") {
		if !strings.HasPrefix(string(e.Name), "workspace/") && e.Kind != worker.EventOverflow {
			t.Errorf("in another file system: %s %s", e.Kind, e.Name)
		}
	}
	l.mustNotSeeWorkers(t, id)
}

// TestWatchesOfABoxAreBounded: a box has few watches at once, and one that has ended makes room.
func TestWatchesOfABoxAreBounded(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	var last func()
	for range boxfs.PerBox {
		_, done, err := l.OpenWatch(t.Context(), id, "")
		if err != nil {
			t.Fatal(err)
		}
		defer done()
		last = done
	}
	if _, _, err := l.OpenWatch(t.Context(), id, ""); !errors.Is(err, ErrManyWatches) {
		t.Fatalf("one more watch: %v", err)
	}
	openFiles(t, l, id).Close() // other calls have their own places
	last()
	for end := time.Now().Add(time.Minute); ; {
		_, done, err := l.OpenWatch(t.Context(), id, "")
		if err == nil {
			done()
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after the end of a watch: %v", err)
		}
	}
}

// TestWatchOfAPausedBox: a watch goes on after a pause, and ends with the box, of which it keeps nothing alive.
func TestWatchOfAPausedBox(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	w := watchBox(t, l, id, "/workspace/home")
	if err := errors.Join(l.Pause(t.Context(), id), l.Resume(t.Context(), id)); err != nil {
		t.Fatal(err)
	}
	sh(t, l, id, "touch after")
	w.await(worker.EventCreate, "after")
	if err := l.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := l.Delete(context.WithoutCancel(t.Context()), id); err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.ended:
	case <-time.After(time.Minute):
		t.Fatal("the watch of a deleted box goes on")
	}
	nothingLeft(t, l, id)
}

// TestAttackFloodOfFileEvents: a box makes events as fast as it can while the reader of a watch does not read. The process of the watch
// stays small, the reader is told of the loss, and then reads what happens next. Another box is not disturbed.
func TestAttackFloodOfFileEvents(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id, other := newBox(t, l, nil), newBox(t, l, nil)
	w, calm := watchBox(t, l, id, "/workspace/home"), watchBox(t, l, other, "/workspace/home")
	w.gate.Lock()
	r := sh(t, l, id, `python3 -c '
import os
name = b"x" * 200
for i in range(30000):
    a = name + b"\n\x1b[31m\xff%d" % (i % 10)
    os.close(os.open(a, os.O_CREAT | os.O_WRONLY))
    os.rename(a, b"other")
    os.unlink(b"other")
'`)
	want(t, r, "")
	sh(t, l, other, "touch calm")
	calm.await(worker.EventCreate, "calm")
	if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.session.Pid())); err != nil || rss(status) > 64<<10 {
		t.Errorf("the process of the watch has %d KiB, %v", rss(status), err)
	}
	w.gate.Unlock()
	w.await(worker.EventOverflow, "")
	sh(t, l, id, "touch last")
	w.await(worker.EventCreate, "last")
}

func rss(status []byte) (kib int) {
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib
		}
	}
	return 0
}

// TestAttackInotifyOfABox: a box that has taken all its inotify instances does not keep the gateway from watching it, and the watches of
// the gateway leave the box its own.
func TestAttackInotifyOfABox(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	const hog = `
import ctypes, sys, time
libc = ctypes.CDLL(None)
n = 0
while libc.inotify_init1(0) >= 0: n += 1
print(n, flush=True)
`
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	before := sh(t, l, id, "python3 -c '"+hog+"'")
	taken, hogging := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(hogging)
		_, _ = exitOf(ctx, l, id, ExecSpec{Args: []string{"python3", "-c", hog + "\ntime.sleep(1000)"}, Stdout: writerFunc(func(b []byte) (int, error) {
			close(taken)
			return len(b), nil
		})})
	}()
	select {
	case <-taken:
	case <-hogging:
		t.Fatal("the box cannot take its inotify instances")
	}
	watches := []*boxWatch{}
	for range boxfs.PerBox {
		watches = append(watches, watchBox(t, l, id, "/workspace/home"))
	}
	sh(t, l, id, "touch seen")
	for _, w := range watches {
		w.await(worker.EventCreate, "seen")
	}
	cancel()
	<-hogging
	if after := sh(t, l, id, "python3 -c '"+hog+"'"); after.out != before.out || before.out == "0\n" {
		t.Errorf("the box can have %q inotify instances besides the gateway's watches, before %q", after.out, before.out)
	}
}

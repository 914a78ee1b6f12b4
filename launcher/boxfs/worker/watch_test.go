package worker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// watched is a running watch of a box.
type watched struct {
	*box
	marks int
}

// watch begins to watch a directory of a box.
func (b *box) watch(name string, recursive, entries bool) *watched {
	b.t.Helper()
	if _, err := b.do(Request{Op: OpWatch, Path: b.at(name), Recursive: recursive, Entries: entries}); err != nil {
		b.t.Fatal(err)
	}
	return &watched{box: b}
}

// events returns the events so far. It makes a file in the watched directory to find their end, again if its event was lost.
func (w *watched) events(dir string) (all []Event) {
	w.t.Helper()
	w.marks++
	mark := fmt.Sprintf("mark%d", w.marks)
	w.must(os.WriteFile(filepath.Join(w.dir, dir, mark), nil, 0o644))
	for {
		if slices.ContainsFunc(all, func(e Event) bool { return e.Kind == EventOverflow && len(e.Name) == 0 }) {
			return append(all, w.events(dir)...)
		}
		a, err := w.answer()
		if err != nil {
			w.t.Fatal(err)
		}
		if i := slices.IndexFunc(a.Events, func(e Event) bool { return string(e.Name) == mark }); i >= 0 {
			return append(all, a.Events[:i]...)
		}
		all = append(all, a.Events...)
	}
}

// short returns the events as texts, with each text once if it follows itself.
func short(events []Event) (texts []string) {
	for _, e := range events {
		texts = append(texts, e.Kind+" "+string(e.Name))
	}
	return slices.Compact(texts)
}

func (w *watched) expect(dir, what string, want ...string) {
	w.t.Helper()
	if got := short(w.events(dir)); !slices.Equal(got, want) {
		w.t.Errorf("%s: events %q, want %q", what, got, want)
	}
}

func (b *box) path(name string) string { return b.dir + "/" + name }

// TestWatchReportsChanges: each kind of change has its event, with the name as the box wrote it; directories below are not watched unless
// asked.
func TestWatchReportsChanges(t *testing.T) {
	b := newBox(t)
	b.must(os.MkdirAll(b.path("d/below"), 0o755), os.WriteFile(b.path("d/old"), []byte("x"), 0o644), os.WriteFile(b.path("outside"), nil, 0o644))
	w := b.watch("d", false, false)
	b.must(os.WriteFile(b.path("d/new"), []byte("x"), 0o644))
	w.expect("d", "a new file", "create new", "write new")
	b.must(os.WriteFile(b.path("d/old"), []byte("y"), 0o644), os.Chmod(b.path("d/old"), 0o600), os.Remove(b.path("d/old")))
	w.expect("d", "an old file", "write old", "chmod old", "remove old")
	b.must(os.Rename(b.path("d/new"), b.path("d/name")), os.Rename(b.path("d/name"), b.path("away")), os.Rename(b.path("outside"), b.path("d/inside")))
	w.expect("d", "names", "rename new", "create name", "rename name", "create inside")
	b.must(os.WriteFile(b.path("d/below/x"), nil, 0o644), os.Symlink("nowhere", b.path("d/link")))
	w.expect("d", "links and directories below", "create link")
	odd := "new\nline\xff\x1b[31m"
	b.must(os.WriteFile(b.path("d/"+odd), nil, 0o644))
	w.expect("d", "an odd name", "create "+odd)
}

// TestWatchIsPaced: a box that makes events as fast as it can gives the reader 25,600 a second at most, however many fit into an answer of
// the kernel.
func TestWatchIsPaced(t *testing.T) {
	b := newBox(t)
	b.must(os.WriteFile(b.path("a"), nil, 0o644), os.WriteFile(b.path("b"), nil, 0o644))
	w := b.watch("", false, false)
	const many = 15_000 // fewer than the kernel queues
	began := time.Now()
	for i := range many {
		b.must(os.Chmod(b.path([]string{"a", "b"}[i%2]), 0o644))
	}
	got := len(w.events(""))
	if took := time.Since(began); got != many || took < (many-4096)*watchPause/maxEvents {
		t.Errorf("%d events in %v", got, took)
	}
}

// TestWatchDescribesFiles: with entries, an event has what stat tells, and those of files that are gone have none.
func TestWatchDescribesFiles(t *testing.T) {
	b := newBox(t)
	w := b.watch("", false, true)
	b.must(os.WriteFile(b.path("f"), []byte("12345"), 0o640), os.Symlink("f", b.path("link")))
	byName := map[string]*Info{}
	for _, e := range w.events("") {
		byName[string(e.Name)] = e.Entry
	}
	if f := byName["f"]; f == nil || f.Size != 5 || f.Mode != 0o640 || f.Type != "file" || f.UID != uint32(os.Getuid()) || f.Owner == "" || string(f.Name) != "f" {
		t.Errorf("the file is described as %+v", f)
	}
	if l := byName["link"]; l == nil || l.Type != "symlink" || string(l.Target) != "f" {
		t.Errorf("the link is described as %+v", l)
	}
	b.must(os.Remove(b.path("f")))
	if got := w.events(""); len(got) != 1 || got[0].Kind != EventRemove || got[0].Entry != nil {
		t.Errorf("after the removal: %+v", got)
	}
}

// TestWatchFollowsDirectories: a recursive watch sees new directories with the files made in them before it could watch them, and keeps
// the names right when directories are moved within, out and in.
func TestWatchFollowsDirectories(t *testing.T) {
	b := newBox(t)
	b.must(os.MkdirAll(b.path("d/a/b"), 0o755), os.MkdirAll(b.path("other/deep"), 0o755), os.WriteFile(b.path("other/deep/f"), nil, 0o644),
		os.Symlink("..", b.path("d/a/loop")), os.Symlink("../other", b.path("d/link")))
	w := b.watch("d", true, false)
	b.must(os.WriteFile(b.path("d/a/b/f"), nil, 0o644), os.WriteFile(b.path("other/unseen"), nil, 0o644))
	w.expect("d", "a file below", "create a/b/f")
	b.must(os.MkdirAll(b.path("d/n/e/w"), 0o755), os.WriteFile(b.path("d/n/e/w/f"), []byte("x"), 0o644))
	got := short(w.events("d"))
	for _, want := range []string{"create n", "create n/e", "create n/e/w", "create n/e/w/f"} {
		if n := len(slices.DeleteFunc(slices.Clone(got), func(s string) bool { return s != want })); n != 1 {
			t.Errorf("new directories: %d events %q in %q", n, want, got)
		}
	}
	b.must(os.Rename(b.path("d/n"), b.path("d/a/m")), os.WriteFile(b.path("d/a/m/e/w/f"), []byte("y"), 0o644))
	w.expect("d", "a directory moved within", "rename n", "create a/m", "write a/m/e/w/f")
	b.must(os.Rename(b.path("d/a/m"), b.path("gone")))
	w.expect("d", "a directory moved out", "rename a/m")
	b.must(os.WriteFile(b.path("gone/e/w/f"), []byte("z"), 0o644))
	w.expect("d", "its files")
	b.must(os.Rename(b.path("other"), b.path("d/other")))
	got = short(w.events("d"))
	slices.Sort(got)
	if want := []string{"create other", "create other/deep", "create other/deep/f", "create other/unseen"}; !slices.Equal(got, want) {
		t.Errorf("a directory moved in: %q", got)
	}
	b.must(os.WriteFile(b.path("d/other/deep/f"), []byte("x"), 0o644), os.RemoveAll(b.path("d/other/deep")), os.WriteFile(b.path("d/other/g"), nil, 0o644))
	w.expect("d", "after that", "write other/deep/f", "remove other/deep/f", "remove other/deep", "create other/g")
}

// TestWatchKeepsNamesOfExchangedDirectories: the kernel reports an exchange as two moves, whose names mislead a reader who follows them.
func TestWatchKeepsNamesOfExchangedDirectories(t *testing.T) {
	b := newBox(t)
	b.must(os.MkdirAll(b.path("d/one/x"), 0o755), os.MkdirAll(b.path("d/two/y"), 0o755))
	w := b.watch("d", true, false)
	for range 3 {
		b.must(unix.Renameat2(unix.AT_FDCWD, b.path("d/one"), unix.AT_FDCWD, b.path("d/two"), unix.RENAME_EXCHANGE))
	}
	w.events("d")
	b.must(os.WriteFile(b.path("d/two/x/f"), nil, 0o644), os.WriteFile(b.path("d/one/y/f"), nil, 0o644))
	w.expect("d", "after exchanges", "create two/x/f", "create one/y/f")
}

// TestWatchOfDirectoriesInMotion: while a box moves directories as fast as it can, also below each other, no later event is lost and each
// has the name that the file has then.
func TestWatchOfDirectoriesInMotion(t *testing.T) {
	b := newBox(t)
	b.must(os.MkdirAll(b.path("d/a"), 0o755), os.MkdirAll(b.path("d/b/c"), 0o755), os.MkdirAll(b.path("d/b/c/deep/er"), 0o755))
	w := b.watch("d", true, false)
	for range 500 {
		b.must(os.Rename(b.path("d/b/c"), b.path("d/c")), os.Rename(b.path("d/a"), b.path("d/c/a")), os.Rename(b.path("d/c"), b.path("d/a")), os.Rename(b.path("d/a"), b.path("d/b/c")),
			os.Rename(b.path("d/b/c/a"), b.path("d/a")), os.Mkdir(b.path("d/a/n"), 0o755), os.Remove(b.path("d/a/n")))
	}
	w.events("d")
	w.events("d") // the watch is settled when it has read the first mark
	b.must(os.WriteFile(b.path("d/b/c/deep/er/f"), nil, 0o644), os.WriteFile(b.path("d/a/f"), nil, 0o644))
	w.expect("d", "after the moves", "create b/c/deep/er/f", "create a/f")
}

// end returns the failure that ends a watch, and the events before it.
func (w *watched) end() (events []Event, err error) {
	w.t.Helper()
	for {
		a, err := w.answer()
		if err != nil {
			return events, err
		}
		events = append(events, a.Events...)
	}
}

// TestWatchEndsWithItsDirectory: a watch whose directory is removed or moved ends with the reason, since nothing is at its path any more.
func TestWatchEndsWithItsDirectory(t *testing.T) {
	b := newBox(t)
	b.must(os.MkdirAll(b.path("d/e"), 0o755))
	w := b.watch("d", true, false)
	b.must(os.RemoveAll(b.path("d")))
	if events, err := w.end(); !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "removed") || !slices.Equal(short(events), []string{"remove e"}) {
		t.Errorf("a removed directory: %q, %v", short(events), err)
	}
	b.must(os.Mkdir(b.path("d"), 0o755))
	w = b.watch("d", false, false)
	b.must(os.Rename(b.path("d"), b.path("elsewhere")))
	if _, err := w.end(); !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "moved") {
		t.Errorf("a moved directory: %v", err)
	}
	for name, want := range map[string]error{"missing": unix.ENOENT, "f": unix.ENOTDIR, "sealed": unix.EACCES} {
		b.must(os.WriteFile(b.path("f"), nil, 0o644), os.MkdirAll(b.path("sealed"), 0))
		if _, err := b.do(Request{Op: OpWatch, Path: b.at(name)}); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	if _, err := b.do(Request{Op: OpWatch, Path: []byte("/proc")}); !errors.Is(err, unix.EACCES) {
		t.Errorf("/proc: %v", err)
	}
}

// TestWatchEndsWithItsCaller: a watch without events ends when its input does.
func TestWatchEndsWithItsCaller(t *testing.T) {
	b := newBox(t)
	b.watch("", true, true)
	if err := b.stop(); err != nil {
		t.Error(err)
	}
	if err := serve(strings.NewReader("\x00\x00\x00\x0e{\"Op\":\"watch\"}"), io.Discard); err == nil {
		t.Error("a watch has started that could not end with its caller")
	}
}

// TestWatchIsBounded: a watch of more directories than one may have is refused; of one that is added later the reader is told, and likewise
// of directories whose paths are too long or that cannot be read.
func TestWatchIsBounded(t *testing.T) {
	b := newBox(t)
	for i := range MaxWatched - 2 {
		b.must(os.MkdirAll(b.path(fmt.Sprintf("d/%d/%d", i/100, i)), 0o755))
	}
	if _, err := b.do(Request{Op: OpWatch, Path: b.at("d"), Recursive: true}); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "directories") {
		t.Fatalf("too many directories: %v", err)
	}
	if got := len(watchesOf(t)); got != 0 {
		t.Errorf("%d watches are left of one that was refused", got)
	}
	w := b.watch("d", false, false) // without the directories below
	w.expect("d", "a watch of one directory")
	b.next()
	w = b.watch("d/0", true, false)
	b.must(os.Rename(b.path("d/1"), b.path("d/0/in1")), os.Mkdir(b.path("d/0/sealed"), 0))
	events := w.events("d/0")
	if !slices.Contains(short(events), "create in1/199") || !slices.Contains(short(events), "overflow sealed") {
		t.Errorf("directories that are moved in or cannot be read: %q", short(events))
	}
	for i := 2; i <= MaxWatched/100; i++ {
		_ = os.Rename(b.path(fmt.Sprintf("d/%d", i)), b.path(fmt.Sprintf("d/0/in%d", i)))
	}
	b.must(os.Mkdir(b.path("d/0/more"), 0o755))
	events = w.events("d/0")
	if n := len(watchesOf(t)); n > MaxWatched || !slices.Contains(short(events), "create more") || !slices.Contains(short(events), "overflow more") {
		t.Errorf("one directory too many: %d watches, %d events, the last are %q", n, len(events), short(events[max(0, len(events)-3):]))
	}
}

// next starts another server, since a watch is the last request of one.
func (b *box) next() {
	b.t.Helper()
	if err := b.stop(); err != nil {
		b.t.Error(err)
	}
	b.start()
}

// watchesOf returns the watches of this process, as the kernel counts them.
func watchesOf(t *testing.T) (watches []string) {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		text, _ := os.ReadFile(info) // of a file that was closed meanwhile
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "inotify ") {
				watches = append(watches, line)
			}
		}
	}
	return watches
}

// TestAttackDeepDirectories: a watch goes no deeper than its paths may be long, and tells so, however deep a box makes its directories.
func TestAttackDeepDirectories(t *testing.T) {
	b := newBox(t)
	name := strings.Repeat("n", 250)
	w := b.watch("", true, false)
	dir, err := unix.Open(b.dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for range 40 {
		b.must(err, unix.Mkdirat(dir, name, 0o755))
		below, e := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		unix.Close(dir)
		dir, err = below, e
	}
	unix.Close(dir)
	late := false
	for _, e := range w.events("") {
		late = late || e.Kind == EventOverflow && len(e.Name) > maxWatchedPath
		if len(e.Name) > maxWatchedPath+1+len(name) {
			t.Fatalf("a name of %d bytes", len(e.Name))
		}
	}
	if !late {
		t.Error("the reader does not know that deep directories are not watched")
	}
	if n := len(watchesOf(t)); n > 1+maxWatchedPath/len(name) {
		t.Errorf("%d directories are watched", n)
	}
}

// TestAttackFloodOfEvents: a box that changes files faster than they are read makes the kernel drop events. The reader is told, also of a
// directory that was made meanwhile, and answers are bounded in number and size.
func TestAttackFloodOfEvents(t *testing.T) {
	b := newBox(t)
	w := b.watch("", true, true)
	for i := range 30_000 {
		b.must(os.WriteFile(b.path(fmt.Sprintf("%d", i%7)), nil, 0o644), os.Remove(b.path(fmt.Sprintf("%d", i%7))))
	}
	b.must(os.MkdirAll(b.path("late/dir"), 0o755))
	lost := false
	for !lost {
		a, err := w.answer()
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Events) > maxEvents {
			t.Fatalf("an answer has %d events", len(a.Events))
		}
		lost = slices.ContainsFunc(a.Events, func(e Event) bool { return e.Kind == EventOverflow && len(e.Name) == 0 })
		if !lost && slices.ContainsFunc(a.Events, func(e Event) bool { return string(e.Name) == "later" }) {
			t.Fatal("a change after the loss of events is reported before the loss")
		}
		b.must(os.WriteFile(b.path("later"), nil, 0o644))
	}
	w.events("")
	b.must(os.WriteFile(b.path("late/dir/f"), nil, 0o644))
	w.expect("", "after the loss", "create late/dir/f")
}

// TestWatchFollowsNoLink: links to directories, and loops of them, have events of their own names only.
func TestWatchFollowsNoLink(t *testing.T) {
	b := newBox(t)
	b.must(os.MkdirAll(b.path("d/x"), 0o755), os.Mkdir(b.path("out"), 0o755), os.Symlink("../out", b.path("d/out")), os.Symlink(".", b.path("d/x/loop")), os.Symlink("d", b.path("link")))
	w := b.watch("link", true, false) // the directory itself may be named by a link
	b.must(os.WriteFile(b.path("out/f"), nil, 0o644), os.WriteFile(b.path("d/x/f"), nil, 0o644), os.Symlink("/proc", b.path("d/proc")))
	w.expect("d", "links", "create x/f", "create proc")
	for range 500 { // a link takes the place of a directory before the watch reads of either
		b.must(os.Mkdir(b.path("d/y"), 0o755), os.Remove(b.path("d/y")), os.Symlink("../out", b.path("d/y")), os.Remove(b.path("d/y")))
	}
	b.must(os.Symlink("../out", b.path("d/y")))
	w.events("d")
	b.must(os.WriteFile(b.path("out/g"), nil, 0o644))
	w.expect("d", "links in the place of directories")
	if n := len(watchesOf(t)); n != 2 {
		t.Errorf("%d directories are watched", n)
	}
}

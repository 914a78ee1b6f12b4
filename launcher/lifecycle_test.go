package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
	"boxgate/launcher/launchertest"
	"boxgate/policy"
)

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	want(t, sh(t, l, id, "(i=0; while :; do i=$((i+1)); echo $i > n; sleep 0.001; done) >/dev/null 2>&1 & until [ -s n ]; do sleep 0.001; done; echo counting"), "counting")
	for range 2 { // the second time is a no-op
		if err := l.Pause(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := l.State(t.Context(), id); err != nil || st.State != StatePaused {
		t.Errorf("%+v, %v", st, err)
	}
	if _, err := exitOf(t.Context(), l, id, ExecSpec{Args: []string{"true"}}); !errors.Is(err, ErrPaused) {
		t.Errorf("a command in a paused box: %v", err)
	}
	for range 2 {
		if err := l.Resume(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	want(t, sh(t, l, id, "a=$(cat n); until [ \"$(cat n)\" != \"$a\" ]; do sleep 0.001; done; echo on"), "on")
	if err := l.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := l.Delete(t.Context(), id); err != nil {
		t.Fatalf("deleting a paused box: %v", err)
	}
	nothingLeft(t, l, id)
	for name, err := range map[string]error{"pause": l.Pause(t.Context(), id), "resume": l.Resume(t.Context(), id)} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s of a deleted box: %v", name, err)
		}
	}
}

func TestDeleteEndsEverything(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	ended := make(chan int, 1)
	started := make(chan struct{})
	go func() {
		exit, _ := exitOf(context.Background(), l, id, ExecSpec{
			Args:   []string{"sh", "-c", "setsid sh -c 'trap \"\" TERM; sleep 1000' & echo up; sleep 1000"},
			Stdout: writerFunc(func(p []byte) (int, error) { close(started); return len(p), nil }),
		})
		ended <- exit
	}()
	<-started
	if err := l.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if exit := <-ended; exit != 137 {
		t.Errorf("the command ended with %d", exit)
	}
	nothingLeft(t, l, id)
}

func TestNextLauncherAdoptsBoxes(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dir := t.TempDir()
	if err := debianOnce(); err != nil {
		t.Fatal(err)
	}
	first := launcherIn(t, dir, nil)
	id := newBox(t, first, func(s *Spec) { s.Env = map[string]string{"COLOUR": "green"} })
	want(t, sh(t, first, id, "(while :; do sleep 1; done) >/dev/null 2>&1 & echo $! > pid; echo up"), "up")
	half := Spec{ID: newID()}
	if _, err := first.Prepare(t.Context(), half); err != nil {
		t.Fatal(err)
	}

	next := launcherIn(t, dir, nil)
	list, err := next.Recover(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].State != StateIdle {
		t.Fatalf("recovered %+v, %v", list, err)
	}
	nothingLeft(t, next, half.ID)
	want(t, sh(t, next, id, "kill -0 $(cat pid) && echo $COLOUR"), "green")
	if err := next.Create(t.Context(), Spec{ID: id}); !errors.Is(err, ErrExists) {
		t.Errorf("creating it again: %v", err)
	}
	if _, err := next.Prepare(t.Context(), Spec{ID: id}); !errors.Is(err, ErrExists) {
		t.Errorf("preparing it again: %v", err)
	}
	want(t, sh(t, next, id, "echo unharmed"), "unharmed")
	if err := next.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, next, id)
}

// TestNextLauncherEndsBoundCommands: the next launcher kills a running command that is bound to its launcher, with all its
// descendants. Background processes of a command that had ended keep running.
func TestNextLauncherEndsBoundCommands(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dir := t.TempDir()
	if err := debianOnce(); err != nil {
		t.Fatal(err)
	}
	first := launcherIn(t, dir, nil)
	id := newBox(t, first, nil)
	want(t, run(t, first, id, ExecSpec{Args: []string{"sh", "-c", "setsid sleep 9881 >/dev/null 2>&1 & echo left"}, Bound: true}), "left")
	bound, err := first.Start(t.Context(), id, ExecSpec{Args: []string{"sh", "-c", "setsid sleep 9882 & sleep 9882"}, Stdout: io.Discard, Stderr: io.Discard, Bound: true})
	if err != nil {
		t.Fatal(err)
	}
	want(t, sh(t, first, id, `until [ "$(pgrep -fc '^sleep 988[2]')" = 2 ]; do sleep 0.01; done; echo up`), "up")

	next := launcherIn(t, dir, nil)
	if _, err := next.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if res, err := bound.Wait(ctx); err != nil || res.Status != 137 {
		t.Errorf("the bound command ended with %+v, %v", res, err)
	}
	want(t, sh(t, next, id, `until [ "$(pgrep -fc '^sleep 988[2]')" = 0 ]; do sleep 0.01; done; pgrep -fc '^sleep 988[1]'`), "1")
	if notes, err := os.ReadDir(next.dirs.bound()); err != nil || len(notes) > 0 {
		t.Errorf("notes are left: %v, %v", notes, err)
	}
}

// A gateway killed at any moment of a creation leaves some of these behind.
func TestRecoverRemovesHalfMadeBoxes(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	img, err := l.images.Find("debian")
	if err != nil {
		t.Fatal(err)
	}
	for name, reach := range map[string]func(Spec, record) error{
		"namespaces only": func(Spec, record) error { return nil },
		"root built":      func(s Spec, r record) error { return l.buildRoot(s, img, r.ids(), l.writeNewRoot) },
		"started": func(s Spec, r record) error {
			if err := l.buildRoot(s, img, r.ids(), l.writeNewRoot); err != nil {
				return err
			}
			return l.startRuntime(t.Context(), s)
		},
		"record lost": func(s Spec, r record) error {
			if err := l.buildRoot(s, img, r.ids(), l.writeNewRoot); err != nil {
				return err
			}
			if err := l.startRuntime(t.Context(), s); err != nil {
				return err
			}
			return os.Remove(l.dirs.record(s.ID))
		},
		"runtime state cut short": func(s Spec, r record) error {
			if err := l.buildRoot(s, img, r.ids(), l.writeNewRoot); err != nil {
				return err
			}
			if err := l.startRuntime(t.Context(), s); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(l.containerState(s.ID), "state.json"), []byte("{"), 0o600)
		},
	} {
		spec := Spec{ID: newID(), CA: launchertest.CA(t)}
		if _, err := l.Prepare(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		r, err := l.loadRecord(spec.ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := reach(spec, r); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if list, err := l.Recover(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("%s: recovered %+v, %v", name, list, err)
		}
		nothingLeft(t, l, spec.ID)
	}
}

func TestFailedCreateLeavesNothing(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	broken := filepath.Join(t.TempDir(), "runtime")
	for name, c := range map[string]struct {
		script string // wraps runc
		change func(*Spec)
		says   string
	}{
		"runtime refuses to create": {script: `case "$*" in *" create "*) echo no >&2; exit 1;; esac`},
		"runtime dies after create": {script: `case "$*" in *" create "*) runc "$@"; exit 1;; esac`},
		"runtime refuses to start":  {script: `case "$*" in *" start "*) exit 1;; esac`},
		"no such image":             {change: func(s *Spec) { s.Image = "/no/such/image" }, says: "no such file"},
		"image not pulled":          {change: func(s *Spec) { s.Image = "registry.invalid/x" }, says: "does not exist yet"},
		"not an image":              {change: func(s *Spec) { s.Image = empty }, says: "not a root file system"},
		"private key as CA":         {change: func(s *Spec) { s.CA = []byte("-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n") }, says: "only certificates"},
		"garbage as CA":             {change: func(s *Spec) { s.CA = []byte("hello") }, says: "not PEM"},
		"namespace gone":            {says: "namespaces are gone"},
	} {
		l := newLauncher(t)
		if c.script != "" {
			path := broken + strings.ReplaceAll(name, " ", "-")
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"+c.script+"\nexec runc \"$@\"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			l.runc.Command = path
		}
		spec := Spec{ID: newID(), CA: launchertest.CA(t)}
		if c.change != nil {
			c.change(&spec)
		}
		if _, err := l.Prepare(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if name == "namespace gone" {
			if err := l.removePins(spec.ID); err != nil {
				t.Fatal(err)
			}
		}
		err := l.Create(t.Context(), spec)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		nothingLeft(t, l, spec.ID)
	}
}

func TestCreateWantsPrepare(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	if err := l.Create(t.Context(), Spec{ID: newID()}); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	for _, id := range []policy.BoxID{"", ".", "..", "a/b", "../x", "-x", "a b", "a\x00", policy.BoxID(strings.Repeat("a", 64))} {
		if _, err := l.Prepare(t.Context(), Spec{ID: id}); err == nil {
			t.Errorf("ID %q was accepted", id)
		}
		if err := l.Delete(t.Context(), id); err == nil {
			t.Errorf("deleting ID %q was accepted", id)
		}
	}
	for _, s := range []Spec{{Size: "huge"}, {Hostname: "a.b\nc"}, {Env: map[string]string{"": "x"}}, {Env: map[string]string{"A": "x\x00"}}} {
		s.ID = newID()
		if _, err := l.Prepare(t.Context(), s); err == nil {
			t.Errorf("%+v was accepted", s)
		}
		nothingLeft(t, l, s.ID)
	}
}

func TestBoxWhoseFirstProcessDiedIsInError(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	dirs, err := l.cgroup(id).Dirs()
	if err != nil || len(dirs) == 0 {
		t.Fatal(dirs, err)
	}
	if err := l.cgroup(id).Kill(); err != nil {
		t.Fatal(err)
	}
	var st Status
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); {
		if st, err = l.State(t.Context(), id); err != nil || st.State == StateError {
			break
		}
	}
	if err != nil || st.State != StateError {
		t.Fatalf("%+v, %v", st, err)
	}
	if _, err := exitOf(t.Context(), l, id, ExecSpec{Args: []string{"true"}}); !errors.Is(err, ErrNotRunning) {
		t.Errorf("exec: %v", err)
	}
	if err := l.Pause(t.Context(), id); !errors.Is(err, ErrNotRunning) {
		t.Errorf("pause: %v", err)
	}
}

func TestLaunchersDoNotMeet(t *testing.T) {
	t.Parallel()
	a, b := newLauncher(t), newLauncher(t)
	id := newID()
	for _, l := range []*Launcher{a, b} {
		newBox(t, l, func(s *Spec) { s.ID, s.Hostname = id, "host-"+l.tag })
	}
	if err := a.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	want(t, sh(t, b, id, "hostname"), fmt.Sprintf("host-%s", b.tag))
}

// TestTheRunDirectoryIsNobodyElses: a missing or empty run directory, or one that a launcher uses, is accepted, also with
// other files in it.
func TestTheRunDirectoryIsNobodyElses(t *testing.T) {
	state, run := t.TempDir(), filepath.Join(t.TempDir(), "run")
	check := func(refused bool) {
		t.Helper()
		if err := CheckRunDir(state, run); (err != nil) != refused || refused && !strings.Contains(err.Error(), "theirs") {
			t.Error(err)
		}
	}
	mkdir := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.MkdirAll(filepath.Join(run, name), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	check(false)
	mkdir("")
	check(false)
	mkdir("theirs")
	check(true)
	mkdir("netns")
	check(false)
	own, others, err := RunEntries(state, run)
	if err != nil || len(own) != 1 || len(others) != 1 || filepath.Base(own[0]) != "netns" {
		t.Error(own, others, err)
	}
}

// TestUninstallLeavesTheRunDirectoryOfOthers: other programs' files and mounts in the run directory stay, and all of the
// launcher's are removed.
func TestUninstallLeavesTheRunDirectoryOfOthers(t *testing.T) {
	nightly.Root(t)
	run := filepath.Join(t.TempDir(), "run")
	l, err := New(Config{StateDir: filepath.Join(t.TempDir(), "state"), RunDir: run})
	if err != nil {
		t.Fatal(err)
	}
	mounted, pinned := filepath.Join(run, "theirs"), filepath.Join(run, "netns", "left")
	for _, dir := range []string{mounted, pinned} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("boxgate-test", dir, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	}
	file := filepath.Join(mounted, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Uninstall(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(file); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(run); err != nil || len(entries) != 1 {
		t.Error(entries, err)
	}
}

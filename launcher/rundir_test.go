package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

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

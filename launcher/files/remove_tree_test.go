package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// deepen makes a chain of directories below a directory, however long its path becomes, and a file at its end.
func deepen(t *testing.T, dir string, levels int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for i := 0; err == nil && i < levels; i++ {
		var next int
		if err = unix.Mkdirat(fd, "d", 0o700); err == nil {
			next, err = unix.Openat(fd, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		unix.Close(fd)
		fd = next
	}
	if err == nil {
		err = unix.Mknodat(fd, "end", unix.S_IFREG|0o600, 0)
		unix.Close(fd)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func gone(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", path, err)
	}
}

func TestRemoveTreeNeedsFewDescriptors(t *testing.T) {
	t.Parallel()
	for name, build := range map[string]func(tree string){
		"very deep":          func(tree string) { deepen(t, tree, 3000) },
		"at the bound":       func(tree string) { deepen(t, tree, maxOpenDirs-1) },
		"just above":         func(tree string) { deepen(t, tree, maxOpenDirs) },
		"one more than that": func(tree string) { deepen(t, tree, maxOpenDirs+1) },
		"wide and deep": func(tree string) {
			for i := range maxLifted + 50 {
				deepen(t, mkdir(t, filepath.Join(tree, fmt.Sprint(i))), maxOpenDirs+5)
			}
		},
		"many files": func(tree string) {
			for i := range nightly.Size(4_000, 20_000) {
				if err := unix.Mknod(filepath.Join(tree, fmt.Sprint(i)), unix.S_IFREG, 0); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tree := mkdir(t, filepath.Join(t.TempDir(), "tree"))
			build(tree)
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), removeInChild+"="+tree)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			gone(t, tree)
			if err := RemoveTree(t.Context(), tree); err != nil {
				t.Errorf("removing a missing file: %v", err)
			}
		})
	}
}

func TestRemoveTreeOfOddEntries(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	outside := filepath.Join(mkdir(t, filepath.Join(t.TempDir(), "outside")), "kept")
	if err := os.WriteFile(outside, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	tree := mkdir(t, filepath.Join(t.TempDir(), "tree"))
	at := func(name string) string { return filepath.Join(tree, name) }
	for name, make := range map[string]func(string) error{
		"link to a directory":    func(p string) error { return os.Symlink(filepath.Dir(outside), p) },
		"link to a file":         func(p string) error { return os.Symlink(outside, p) },
		"link to itself":         func(p string) error { return os.Symlink(p, p) },
		"link upwards":           func(p string) error { return os.Symlink("..", p) },
		"hard link":              func(p string) error { return os.Link(outside, p) },
		"pipe":                   func(p string) error { return unix.Mkfifo(p, 0o600) },
		"socket":                 func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o600, 0) },
		"whiteout":               func(p string) error { return unix.Mknod(p, unix.S_IFCHR, 0) },
		"new\nline":              func(p string) error { return os.WriteFile(p, nil, 0) },
		"\x1b[31m\xff\xfe":       func(p string) error { return os.Mkdir(p, 0) },
		"...":                    func(p string) error { return os.Mkdir(p, 0o1777) },
		"-rf":                    func(p string) error { return os.WriteFile(p, nil, 0o600) },
		strings.Repeat("x", 255): func(p string) error { return os.Mkdir(p, 0o700) },
	} {
		if err := make(at(name)); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
	}
	mkdir(t, at("closed/inner"))
	for _, p := range []string{"closed/inner", "closed"} {
		if err := os.Chmod(at(p), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveTree(t.Context(), tree); err != nil {
		t.Fatal(err)
	}
	gone(t, tree)
	if data, err := os.ReadFile(outside); string(data) != "kept" {
		t.Errorf("outside the tree: %q, %v", data, err)
	}
	link := at("../link")
	if err := os.Symlink(filepath.Dir(outside), link); err != nil {
		t.Fatal(err)
	}
	if err := RemoveTree(t.Context(), link); err != nil {
		t.Error(err)
	}
	gone(t, link)
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
}

func TestRemoveTreeStopsAtAMount(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	for name, where := range map[string]string{"on top": ".", "inside": "a/b/c"} {
		dir := t.TempDir()
		tree := filepath.Join(dir, "tree")
		at := mkdir(t, filepath.Join(tree, where))
		if err := unix.Mount("tmpfs", at, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		kept, beside := filepath.Join(at, "kept"), mkdir(t, filepath.Join(dir, "tree", "beside"))
		werr := os.WriteFile(kept, nil, 0o600)
		err := RemoveTree(t.Context(), tree)
		_, serr := os.Stat(kept)
		if where != "." {
			gone(t, beside) // an entry that cannot be removed does not protect the rest
		}
		if uerr := unix.Unmount(at, unix.MNT_DETACH); uerr != nil {
			t.Fatal(uerr)
		}
		if err == nil || werr != nil || serr != nil {
			t.Errorf("%s: removed with %v; the file in the mount: %v, %v", name, err, werr, serr)
		}
		if err := RemoveTree(t.Context(), tree); err != nil {
			t.Errorf("%s: without the mount: %v", name, err)
		}
		gone(t, tree)
	}
}

func TestRemoveTreeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	tree := mkdir(t, filepath.Join(t.TempDir(), "tree"))
	deepen(t, tree, 3*maxOpenDirs)
	ctx, cancel := context.WithCancelCause(t.Context())
	late := errors.New("too late")
	cancel(late)
	if err := RemoveTree(ctx, tree); !errors.Is(err, late) {
		t.Errorf("%v", err)
	}
	if err := RemoveTree(t.Context(), tree); err != nil {
		t.Error(err)
	}
	gone(t, tree)
}

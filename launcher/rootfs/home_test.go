package rootfs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/launcher/namespace"
)

// TestFilesInTheHomeDirectory: the files belong to the box's user, as do the directories that are made for them, and replace what
// was there.
func TestFilesInTheHomeDirectory(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	at := t.TempDir()
	root, err := Open(at, namespace.IDsAt(7))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for i, text := range []string{"first", "second"} {
		if err := root.writeHome(Account{}, []HomeFile{{".config/tool/a.json", []byte(text)}, {".b", nil}}); err != nil {
			t.Fatal(err)
		}
		home := filepath.Join(at, Home)
		got, err := os.ReadFile(filepath.Join(home, ".config/tool/a.json"))
		if err != nil || string(got) != text {
			t.Errorf("%q %v", got, err)
		}
		for name, mode := range map[string]os.FileMode{"": 0o755, ".config": 0o755, ".config/tool/a.json": 0o600, ".b": 0o600} {
			fi, err := os.Stat(filepath.Join(home, name))
			if err != nil || fi.Mode().Perm() != mode || fi.Sys().(*syscall.Stat_t).Uid != uint32(namespace.IDsAt(7).Host(UID)) {
				t.Errorf("%q: %v %v", name, fi, err)
			}
		}
		if aside, err := filepath.Glob(filepath.Join(home, ".b.aside-*")); err != nil || len(aside) != i {
			t.Errorf("%v %v", aside, err)
		}
	}
	for _, bad := range []string{"../x", "/etc/passwd", "", ".", "a/../../b", "a//b"} {
		if err := root.writeHome(Account{}, []HomeFile{{bad, nil}}); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// TestAttackHomeThatIsALinkToNothing: the user of a snapshot's box may have left a link in the place of the home directory. No
// directory is made for the user where it leads, be it in a new box or one that starts again.
func TestAttackHomeThatIsALinkToNothing(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	ids := namespace.IDsAt(7)
	for name, prepare := range map[string]func(*Root) error{
		"a new box": func(r *Root) error { return r.makeHome(Account{}, true) }, "a restarted box": func(r *Root) error { return r.PrepareRestart(Account{}) },
	} {
		for _, link := range []string{"/etc/made", "../etc/made", "/etc/made/deep", "../../../../etc/made", "home"} {
			at := t.TempDir()
			for _, dir := range []string{"etc", "workspace"} {
				if err := os.Mkdir(filepath.Join(at, dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Symlink(link, filepath.Join(at, Home)); err != nil {
				t.Fatal(err)
			}
			root, err := Open(at, ids)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(prepare(root), root.Close()); err != nil {
				t.Errorf("%s, %s: %v", name, link, err)
			}
			if made, err := os.ReadDir(filepath.Join(at, "etc")); err != nil || len(made) > 0 {
				t.Errorf("%s, %s: /etc has %v, %v", name, link, made, err)
			}
			fi, err := os.Lstat(filepath.Join(at, Home))
			if err != nil || !fi.IsDir() || fi.Sys().(*syscall.Stat_t).Uid != uint32(ids.Host(UID)) {
				t.Errorf("%s, %s: the home directory is %v, %v", name, link, fi, err)
			}
		}
	}
}

// TestAttackLinksInTheHomeDirectory: a box of a snapshot may have left links to files of the box's root, which must neither be
// written nor become the user's.
func TestAttackLinksInTheHomeDirectory(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	for name, prepare := range map[string]string{
		"a link to a file":       "mkdir -p workspace/home; ln -s /etc/shadow workspace/home/.claude.json; ln -s ../../etc/shadow workspace/home/.b",
		"a link to a directory":  "mkdir -p workspace/home; ln -s /etc workspace/home/.codex",
		"a relative link":        "mkdir -p workspace/home; ln -s ../../etc workspace/home/.codex",
		"a relative home":        "mkdir workspace; ln -s ../etc workspace/home",
		"a home that is a link":  "mkdir workspace; ln -s /etc workspace/home",
		"a workspace, too":       "ln -s /etc workspace; mkdir etc/home",
		"a link that leads out":  "mkdir -p workspace/home; ln -s ../../../../../../../../etc workspace/home/.codex",
		"a pipe and a directory": "mkdir -p workspace/home/.claude.json/x; mkfifo workspace/home/.codex workspace/home/.b",
		"a hard link":            "mkdir -p workspace/home/.codex; ln etc/shadow workspace/home/.claude.json; ln etc/shadow workspace/home/.codex/shadow",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := t.TempDir()
			shell(t, at, "mkdir etc && echo secret >etc/shadow && "+prepare)
			root, err := Open(at, namespace.IDsAt(7))
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			if err := root.writeHome(Account{}, []HomeFile{{".claude.json", []byte("mine")}, {".codex/shadow", []byte("mine")}, {".b", []byte("mine")}}); err != nil {
				t.Fatal(err)
			}
			fi, err := os.Stat(filepath.Join(at, "etc/shadow"))
			if err != nil || fi.Sys().(*syscall.Stat_t).Uid != 0 || fi.Size() != int64(len("secret\n")) {
				t.Errorf("%v %v", fi, err)
			}
			if dir, err := os.ReadDir(filepath.Join(at, "etc")); err != nil || len(dir) > 2 {
				t.Errorf("%v %v", dir, err)
			}
			for _, file := range []string{".claude.json", ".codex/shadow", ".b"} {
				got, err := os.ReadFile(filepath.Join(at, Home, file))
				if err != nil || string(got) != "mine" {
					t.Errorf("%s: %q %v", file, got, err)
				}
			}
		})
	}
}

// shell runs a line in a directory.
func shell(t *testing.T, dir, line string) {
	t.Helper()
	if out, err := inShell(dir, line).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, strings.TrimSpace(string(out)))
	}
}

func inShell(dir, line string) *exec.Cmd {
	cmd := exec.Command("sh", "-euc", line)
	cmd.Dir = dir
	return cmd
}

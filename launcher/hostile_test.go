package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A tree deeper than this process has descriptors must not keep a box from being removed.
func TestDeleteOfABoxWithADeepTree(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	want(t, run(t, l, id, ExecSpec{Args: []string{"python3", "-c", `import os
for i in range(21000):
    os.mkdir("d"); os.chdir("d")
print("deep")`}}), "deep")
	if err := l.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, l, id)
}

func TestRecoverGoesOnPastABoxThatStays(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	stuck, half := Spec{ID: newID()}, Spec{ID: newID()}
	for _, s := range []Spec{stuck, half} {
		if _, err := l.Prepare(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	at := makeDir(t, filepath.Join(l.dirs.upper(stuck.ID), "mounted"))
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	list, err := l.Recover(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].State != StateIdle {
		t.Errorf("recovered %+v, %v", list, err)
	}
	nothingLeft(t, l, half.ID)
	nothingLeft(t, l, stuck.ID)
	want(t, sh(t, l, id, "echo unharmed"), "unharmed")
	if err := l.EmptyTrash(t.Context()); err == nil {
		t.Error("files were removed through a mount")
	}
	moved, err := filepath.Glob(filepath.Join(l.dirs.trash(), string(stuck.ID)+"-*", "upper", "mounted"))
	if err != nil || len(moved) != 1 {
		t.Fatalf("the mount is at %q, %v", moved, err)
	}
	if err := unix.Unmount(moved[0], unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := l.EmptyTrash(t.Context()); err != nil {
		t.Error(err)
	}
}

// What a command gets in its environment may be a secret. On the host it passes through a closed directory that the next
// launcher empties.
func TestEnvironmentOfCommandsIsKeptClose(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	seen := filepath.Join(t.TempDir(), "seen")
	spy := filepath.Join(t.TempDir(), "runtime")
	script := `#!/bin/sh
prev=
for a in "$@"; do [ "$prev" = --process ] && { stat -c '%a %n' "$(dirname "$(dirname "$a")")" "$(dirname "$a")" "$a"; cat "$a"; } > ` + seen + `; prev=$a; done
exec runc "$@"
`
	if err := os.WriteFile(spy, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	l.runc.Command = spy
	want(t, run(t, l, id, ExecSpec{Args: []string{"sh", "-c", "echo $TOKEN"}, Env: map[string]string{"TOKEN": "s3cr3t"}}), "s3cr3t")
	data, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitN(string(data), "\n", 4)
	if len(lines) != 4 || lines[0] != "700 "+l.dirs.execFiles() || !strings.HasPrefix(lines[1], "700 "+l.dirs.execFiles()+"/") ||
		!strings.HasPrefix(lines[2], "600 "+l.dirs.execFiles()+"/") || !strings.Contains(lines[3], "s3cr3t") {
		t.Errorf("the runtime was given\n%s", data)
	}
	empty := func() bool {
		entries, err := os.ReadDir(l.dirs.execFiles())
		return err == nil && len(entries) == 0
	}
	if !empty() {
		t.Error("something stays after the command")
	}
	killed := makeDir(t, filepath.Join(l.dirs.execFiles(), string(id)+"-1"))
	if err := os.WriteFile(filepath.Join(killed, "process.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !empty() {
		t.Error("something stays after a launcher that was killed")
	}
}

// makeDir makes a directory and returns it.
func makeDir(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

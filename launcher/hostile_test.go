package launcher

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/internal/nightly"
	"boxgate/launcher/oci"
	"boxgate/policy"

	"golang.org/x/sys/unix"
)

// A tree deeper than this process has descriptors must not keep a box from being removed.
func TestDeleteOfABoxWithADeepTree(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	want(t, run(t, l, id, ExecSpec{Args: []string{"python3", "-c", fmt.Sprintf(`import os
for i in range(%d):
    os.mkdir("d"); os.chdir("d")
print("deep")`, nightly.Size(3000, 21000))}}), "deep")
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

// The environment of a command may contain a secret. On the host it passes through a private directory that the next
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

// The first process of a box is killed while commands are being started in it. Whatever the runtime leaves of them, the box
// is seen to have ended: no zombie keeps its PID namespace.
func TestHalfStartedCommandsAreReaped(t *testing.T) {
	t.Parallel()
	for _, runtime := range []string{oci.Default, withoutUnified(t)} {
		if runtime == "" {
			t.Log("NOT RUN under crun, which this host does not have")
			continue
		}
		t.Run(filepath.Base(runtime), func(t *testing.T) {
			t.Parallel()
			l := newLauncher(t)
			l.useRuntime(runtime)
			for range 8 {
				killedAmongStarts(t, l, newBox(t, l, nil))
			}
		})
	}
}

// killedAmongStarts kills the first process of a box while commands are started, and waits until the box has ended.
func killedAmongStarts(t *testing.T, l *Launcher, id policy.BoxID) {
	t.Helper()
	pid, err := readPid(filepath.Join(l.dirs.box(id), "pid"))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			for n := 0; ; n++ {
				if i == 0 && n == 2 {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
				if _, err := exitOf(t.Context(), l, id, ExecSpec{Args: []string{"true"}}); err != nil {
					return
				}
			}
		})
	}
	all.Wait()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		st, err := l.State(t.Context(), id)
		if err == nil && (st.State == StateStopped || st.State == StateError) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("a box whose first process was killed is %v, %v", st.State, err)
		}
	}
}

// withoutUnified returns a crun that only sees version 1 control groups, since crun refuses a host that has controllers in
// both versions.
func withoutUnified(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("crun")
	unified := "/sys/fs/cgroup/unified"
	if controllers, cerr := os.ReadFile(unified + "/cgroup.controllers"); err != nil || cerr != nil || len(controllers) == 0 {
		return path
	}
	wrapper := filepath.Join(t.TempDir(), "crun")
	script := "#!/bin/sh\nexec unshare --mount --propagation unchanged sh -c 'mount --make-rprivate /sys/fs/cgroup && umount " + unified +
		" && exec " + path + " \"$@\"' crun \"$@\"\n"
	if err := os.WriteFile(wrapper, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return wrapper
}

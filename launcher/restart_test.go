package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/launcher/rootfs"
	"boxgate/policy"
)

// TestRestartOfAHostileRoot stops a box that has changed its root in hostile ways, and restarts it: it has its files and
// user IDs, another network namespace, and its first process is ours.
func TestRestartOfAHostileRoot(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	want(t, run(t, l, id, ExecSpec{User: "root", Args: []string{"sh", "-c", `set -e
echo kept > /kept; chmod 777 /; chown 1000 /kept
rm ` + rootfs.InitPath + `; ln -s /kept ` + rootfs.InitPath + `
cd /; rm -rf /workspace; ln -s /etc/../.. /workspace
echo made`}}), "made")
	r, err := l.loadRecord(id)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if st, err := l.State(t.Context(), id); err != nil || st.State != StateStopped {
			t.Errorf("stopped: %+v %v", st, err)
		}
		if _, err := l.Renew(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if err := l.Restart(t.Context(), Spec{ID: id}); err != nil {
			t.Fatal(err)
		}
		want(t, run(t, l, id, ExecSpec{User: "root", Cwd: "/", Args: []string{"sh", "-c", `cat /kept; stat -c %u:%g:%a /kept /; test ! -L ` + rootfs.InitPath + ` && echo ours`}}),
			"kept\n1000:0:644\n0:0:777\nours")
	}
	if after, err := l.loadRecord(id); err != nil || after.IDIndex != r.IDIndex {
		t.Errorf("its user IDs were %d and are %d, %v", r.IDIndex, after.IDIndex, err)
	}
}

// TestRestartOfAnUnusableRoot restarts boxes that have replaced files that the runtime needs: the restart neither blocks
// nor fails, and the replaced files are moved aside.
func TestRestartOfAnUnusableRoot(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	pipe := func(p string) string { return "rm -rf " + p + "; mkfifo " + p }
	for name, script := range map[string]string{
		"pipes":                  pipe("/etc/passwd") + ";" + pipe("/etc/group"),
		"a link to a pipe":       "rm /etc/passwd; mkfifo /etc/pipe; ln -s pipe /etc/passwd",
		"directories":            "for f in passwd group; do rm /etc/$f; mkdir -p /etc/$f/x; done",
		"endless links":          "for f in passwd group; do ln -sf $f /etc/$f; done",
		"links into /proc":       "ln -sf /proc/self/fd/0 /etc/passwd; ln -sf /proc/1/fd/3 /etc/group",
		"links into /dev":        "ln -sf /dev/zero /etc/passwd; ln -sf /dev/stdin /etc/group",
		"no users":               "rm /etc/passwd /etc/group",
		"no /etc":                "mv /etc /etc.old",
		"/etc as a pipe":         "mv /etc /etc.old; mkfifo /etc",
		"/etc as an endless one": "mv /etc /etc.old; ln -s etc /etc",
		"an init that is a tree": "rm " + rootfs.InitPath + "; mkdir -p " + rootfs.InitPath + "/x/y",
		"an init that is a pipe": pipe(rootfs.InitPath),
		"a home that is a pipe":  "rm -rf /workspace; mkfifo /workspace",
		"a home that is endless": "rm -rf /workspace; ln -s workspace /workspace",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := newBox(t, l, nil)
			want(t, rootSh(t, l, id, "echo kept > /kept; "+script+"; echo done"), "done")
			startAgain(t, l, id)
			want(t, run(t, l, id, ExecSpec{User: "root", Cwd: "/", Args: []string{"/bin/cat", "/kept"}}), "kept")
			want(t, run(t, l, id, ExecSpec{Args: []string{"/bin/sh", "-c", "/usr/bin/id -u; pwd"}}), "1000\n"+rootfs.Home)
		})
	}
}

// TestRestartAddsRoots: a box trusts roots that were configured after its creation from its next start on. One that has put
// something else in the place of its certificates starts as well.
func TestRestartAddsRoots(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	roots, _ := testChain(t, "corp.example")
	for name, script := range map[string]string{
		"as created":      "true",
		"a pipe":          "rm " + rootfs.BundlePath + "; mkfifo " + rootfs.BundlePath,
		"an endless link": "rm -rf /etc/ssl; ln -s ssl /etc/ssl",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := newBox(t, l, nil)
			want(t, rootSh(t, l, id, script+"; echo done"), "done")
			if err := l.Stop(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Renew(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			if err := l.Restart(t.Context(), Spec{ID: id, Roots: roots}); err != nil {
				t.Fatal(err)
			}
			if name == "as created" {
				r := run(t, l, id, ExecSpec{User: "root", Cwd: "/", Args: []string{"cat", rootfs.BundlePath}})
				if !strings.Contains(r.out, strings.TrimSpace(string(roots))) {
					t.Errorf("the bundle does not contain the new root: %d bytes", len(r.out))
				}
				return
			}
			want(t, run(t, l, id, ExecSpec{User: "root", Cwd: "/", Args: []string{"echo", "started"}}), "started")
		})
	}
}

// TestRestartOverMountPoints replaces the directories that the runtime mounts on by links and pipes, which is impossible
// from inside while they are mounted.
func TestRestartOverMountPoints(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	for _, make := range []func(string) error{
		func(p string) error { return os.Symlink("/etc", p) },
		func(p string) error { return os.Symlink(filepath.Base(p), p) },
		func(p string) error { return os.WriteFile(p, nil, 0o644) },
	} {
		id := newBox(t, l, nil)
		if err := l.Stop(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"proc", "sys", "dev", "tmp"} {
			p := filepath.Join(l.dirs.upper(id), name)
			if err := errors.Join(os.RemoveAll(p), make(p)); err != nil {
				t.Fatal(err)
			}
		}
		start(t, l, id)
		want(t, rootSh(t, l, id, "ls -d /proc/self/status /dev/null /sys/class; stat -c %F /tmp"), "/dev/null\n/proc/self/status\n/sys/class\ndirectory")
	}
}

// TestBoxThatHoldsUpTheRuntime puts a pipe in place of the user database that the runtime reads: commands that the runtime
// starts report that, and neither they nor the box block for long. Commands that enter the box do not read it.
func TestBoxThatHoldsUpTheRuntime(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	enters := l.entering
	for _, name := range []string{"/etc/passwd", "/etc/group"} {
		id := newBox(t, l, nil)
		want(t, rootSh(t, l, id, "rm "+name+"; mkfifo "+name+"; echo made"), "made")
		if l.entering = enters; enters != nil {
			want(t, sh(t, l, id, "echo entered"), "entered")
		}
		l.entering = nil
		var start *StartError
		if _, err := exitOf(t.Context(), l, id, ExecSpec{Args: []string{"true"}}); !errors.As(err, &start) || !strings.Contains(start.Message, name+" in the box is not a file") {
			t.Errorf("a command: %v", err)
		}
		if err := errors.Join(l.Pause(t.Context(), id), l.Resume(t.Context(), id)); err != nil {
			t.Error(err)
		}
		dirs, err := l.cgroup(id).Dirs()
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if n := members(t, dirs); n <= 1 {
				break
			} else if time.Now().After(end) {
				t.Errorf("the box has %d processes", n)
				break
			}
		}
		ran := make(chan bool)
		go func() {
			status, err := exitOf(t.Context(), l, id, ExecSpec{Args: []string{"true"}})
			ran <- status == 0 && err == nil // it may have been killed on the way, and then has a status
		}()
		if err := l.Delete(t.Context(), id); err != nil {
			t.Error(err)
		}
		if <-ran {
			t.Error("a command ran in a box that was deleted")
		}
		nothingLeft(t, l, id)
	}
}

// members returns the largest number of processes in one of the control groups, including subgroups.
func members(t *testing.T, dirs []string) int {
	t.Helper()
	most := 0
	for _, dir := range dirs {
		n := 0
		_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.Name() == "cgroup.procs" {
				data, _ := os.ReadFile(p)
				n += len(strings.Fields(string(data)))
			}
			return nil
		})
		most = max(most, n)
	}
	return most
}

// TestDeleteWhileTheRuntimeIsHeldUp deletes a box while the runtime blocks in it: the process that blocks it is killed.
func TestDeleteWhileTheRuntimeIsHeldUp(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	if err := l.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Renew(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	there := filepath.Join(t.TempDir(), "there")
	spy := there + ".sh"
	script := "#!/bin/sh\ncase \"$*\" in *\" start \"*)\n: > " + there + "; tail --pid=$(cat " + filepath.Join(l.dirs.box(id), "pid") + ") -f /dev/null; exit 1;; esac\nexec runc \"$@\"\n"
	if err := os.WriteFile(spy, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	l.runc.Command = spy
	ended := make(chan error, 1)
	go func() { ended <- l.Restart(t.Context(), Spec{ID: id}) }()
	for {
		if _, err := os.Stat(there); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	begun := time.Now()
	if err := l.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || time.Since(begun) > runtimeTimeout {
		t.Errorf("the restart ended with %v", err)
	}
	nothingLeft(t, l, id)
}

func startAgain(t *testing.T, l *Launcher, id policy.BoxID) {
	t.Helper()
	if err := l.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	start(t, l, id)
}

// start starts a stopped box.
func start(t *testing.T, l *Launcher, id policy.BoxID) {
	t.Helper()
	if _, err := l.Renew(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := l.Restart(t.Context(), Spec{ID: id}); err != nil {
		t.Fatal(err)
	}
}

package launcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/internal/nightly"
	"boxgate/launcher/launchertest"
	"boxgate/launcher/namespace"
	"boxgate/policy"
)

// imageDir is shared by all tests, and by others who build the debian image on this machine.
func imageDir() string {
	if dir := os.Getenv("TEST_IMAGE_DIR"); dir != "" {
		return dir
	}
	return "/var/lib/boxgate/images"
}

var debianOnce = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "boxgate-image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := New(Config{StateDir: dir, RunDir: filepath.Join(dir, "run"), ImageDir: imageDir()})
	if err != nil {
		return err
	}
	return l.EnsureImage(context.Background(), "debian", func(s string) { fmt.Println("debian image:", s) })
})

// newLauncher returns a new launcher with the debian image ready.
func newLauncher(t *testing.T) *Launcher {
	t.Helper()
	nightly.Root(t)
	if err := debianOnce(); err != nil {
		t.Fatal(err)
	}
	return launcherIn(t, t.TempDir(), nil)
}

func launcherIn(t *testing.T, dir string, images map[string]string) *Launcher {
	t.Helper()
	nightly.Root(t)
	l, err := New(Config{StateDir: dir, ImageDir: imageDir(), Images: images})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		entries, _ := os.ReadDir(l.dirs.boxes())
		for _, e := range entries {
			if err := l.Delete(context.Background(), policy.BoxID(e.Name())); err != nil {
				t.Errorf("cleaning up: %v", err)
			}
		}
		if err := l.EmptyTrash(context.Background()); err != nil {
			t.Errorf("cleaning up: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(l.dirs.run); err == nil {
			t.Errorf("%s is still there", l.dirs.run)
		}
	})
	return l
}

var boxCount atomic.Int64

func newID() policy.BoxID { return policy.BoxID(fmt.Sprintf("t%dx%d", os.Getpid(), boxCount.Add(1))) }

// newBox creates a running box.
func newBox(t *testing.T, l *Launcher, change func(*Spec)) policy.BoxID {
	t.Helper()
	spec := Spec{ID: newID(), CA: launchertest.CA(t), DNS: []netip.Addr{netip.MustParseAddr("10.200.0.1"), netip.MustParseAddr("fd42:b0c5::1")}}
	if change != nil {
		change(&spec)
	}
	if _, err := l.Prepare(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := l.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	return spec.ID
}

// result is the result of a command.
type result struct {
	exit     int
	out, err string
}

// run runs a command in a box; it must start.
func run(t *testing.T, l *Launcher, id policy.BoxID, spec ExecSpec) result {
	t.Helper()
	var out, errs bytes.Buffer
	spec.Stdout, spec.Stderr = &out, &errs
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	exit, err := exitOf(ctx, l, id, spec)
	if err != nil {
		t.Fatalf("%q: %v", spec.Args, err)
	}
	return result{exit, out.String(), errs.String()}
}

// sh runs a script as boxuser.
func sh(t *testing.T, l *Launcher, id policy.BoxID, script string) result {
	t.Helper()
	return run(t, l, id, ExecSpec{Args: []string{"sh", "-c", script}})
}

// rootSh runs a script as the box's root.
func rootSh(t *testing.T, l *Launcher, id policy.BoxID, script string) result {
	t.Helper()
	return run(t, l, id, ExecSpec{Args: []string{"sh", "-c", script}, User: "root"})
}

// want fails the test unless a command succeeded and printed exactly this.
func want(t *testing.T, r result, out string) {
	t.Helper()
	if r.exit != 0 || strings.TrimSpace(r.out) != out {
		t.Errorf("exit %d, output %q, want %q; stderr %q", r.exit, r.out, out, r.err)
	}
}

func TestBoxFromCreateToDelete(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, func(s *Spec) {
		s.Hostname = "maple"
		s.Env = map[string]string{"COLOUR": "green"}
	})
	want(t, sh(t, l, id, `echo "$(whoami) $(id -u):$(id -g) $(hostname) $PWD $HOME $COLOUR"`),
		"boxuser 1000:1000 maple /workspace/home /workspace/home green")
	want(t, rootSh(t, l, id, "whoami; id -u"), "root\n0")
	want(t, run(t, l, id, ExecSpec{Args: []string{"sh", "-c", "id -u; id -g"}, User: "33:34"}), "33\n34")
	want(t, run(t, l, id, ExecSpec{
		Args: []string{"sh", "-c", "echo $COLOUR; pwd"}, Env: map[string]string{"COLOUR": "red"}, Cwd: "/usr",
	}), "red\n/usr")
	want(t, sh(t, l, id, "mkdir sub && cat /etc/hostname && grep nameserver /etc/resolv.conf && grep maple /etc/hosts"),
		"maple\nnameserver 10.200.0.1\nnameserver fd42:b0c5::1\n127.0.1.1\tmaple")
	want(t, run(t, l, id, ExecSpec{Args: []string{"pwd"}, Cwd: "sub"}), "/workspace/home/sub")

	st, err := l.State(t.Context(), id)
	if err != nil || st.State != StateIdle || st.Pid == 0 {
		t.Errorf("state %+v, %v", st, err)
	}
	if err := l.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, l, id)
	if err := l.Delete(t.Context(), id); err != nil {
		t.Errorf("deleting again: %v", err)
	}
	if _, err := l.State(t.Context(), id); !errors.Is(err, ErrNotFound) {
		t.Errorf("state of a deleted box: %v", err)
	}
	if _, err := exitOf(t.Context(), l, id, ExecSpec{Args: []string{"true"}}); !errors.Is(err, ErrNotFound) {
		t.Errorf("exec in a deleted box: %v", err)
	}
}

// nothingLeft checks that a deleted box has left no directory, mount, namespace, control group, container or claim.
func nothingLeft(t *testing.T, l *Launcher, id policy.BoxID) {
	t.Helper()
	for _, p := range []string{l.dirs.box(id), l.dirs.mounts(id), l.dirs.pin(id), l.containerState(id)} {
		if _, err := os.Lstat(p); err == nil {
			t.Errorf("%s is still there", p)
		}
	}
	if dirs, err := l.cgroup(id).Dirs(); err != nil || len(dirs) > 0 {
		t.Errorf("control groups still there: %v %v", dirs, err)
	}
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(mountinfo, []byte(l.dirs.mounts(id))) || bytes.Contains(mountinfo, []byte(l.dirs.pin(id))) {
		t.Errorf("a mount is still there:\n%s", mountinfo)
	}
	claims, _ := os.ReadDir(namespace.Claims)
	for _, c := range claims {
		if owner, _ := os.Readlink(filepath.Join(namespace.Claims, c.Name())); owner == l.dirs.box(id) {
			t.Errorf("user ID range %s is still claimed", c.Name())
		}
	}
}

// exitOf runs a command and returns its exit status.
func exitOf(ctx context.Context, l *Launcher, id policy.BoxID, spec ExecSpec) (int, error) {
	res, err := l.Exec(ctx, id, spec)
	return res.Status, err
}

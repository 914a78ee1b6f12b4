package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// replaceItself makes the test's program, which has several threads, execute itself again and again, and create the file
// with that name each time.
const replaceItself = "BOXGATE_TEST_REPLACES_ITSELF"

func TestMain(m *testing.M) {
	file := os.Getenv(replaceItself)
	if file == "" {
		os.Exit(m.Run())
	}
	var threads sync.WaitGroup
	threads.Add(32)
	for range 32 {
		go func() {
			runtime.LockOSThread()
			threads.Done()
			for {
				_ = unix.Pause()
			}
		}()
	}
	threads.Wait()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	fmt.Fprintln(os.Stderr, unix.Exec("/proc/self/exe", os.Args, os.Environ()))
	os.Exit(1)
}

// tested numbers the groups of tests.
var tested atomic.Int64

// newGroup creates a group in each hierarchy and returns it with its freezers: the host's, and that of version 2 if it is
// mounted beside version 1.
func newGroup(t *testing.T) (Group, map[string]freezer) {
	t.Helper()
	nightly.Root(t)
	h, err := mounted()
	if err != nil {
		t.Fatal(err)
	}
	g := Group(fmt.Sprintf("/boxgate-test-%d-%d", os.Getpid(), tested.Add(1)))
	freezers := map[string]freezer{"of the host": h.freezerOf(g)}
	const beside = "/sys/fs/cgroup/unified"
	if _, err := os.Stat(beside + "/cgroup.procs"); err == nil && h.unified == "" {
		freezers["of version 2"] = freezer{below(beside, g), true}
	}
	for _, f := range freezers {
		if err := os.Mkdir(f.dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := g.KillAndRemove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return g, freezers
}

// work runs a shell script, with all its descendants, in the group.
func work(t *testing.T, g Group, script string) {
	t.Helper()
	shell := exec.Command("sh", "-c", "read go; "+script)
	in, err := shell.StdinPipe()
	if err == nil {
		err = shell.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = shell.Wait(); close(ended) }()
	t.Cleanup(func() {
		if err := g.Kill(); err != nil {
			t.Error(err)
		}
		<-ended
	})
	if err := g.Join(shell.Process.Pid); err != nil {
		t.Fatal(err)
	}
	in.Close()
}

// moves reports whether a script that repeatedly creates a file is running.
func moves(t *testing.T, file string, within time.Duration) bool {
	t.Helper()
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			return true
		}
	}
	return false
}

// TestFreezeWhileProcessesStart freezes shells that start one process after another: each time all of them freeze, and
// continue afterwards. A shell waits in the kernel for its child, and the kernel may miss it then.
func TestFreezeWhileProcessesStart(t *testing.T) {
	t.Parallel()
	g, freezers := newGroup(t)
	file := filepath.Join(t.TempDir(), "n")
	for range 3 {
		work(t, g, "while :; do /bin/true; : > "+file+"; done")
	}
	for name, f := range freezers {
		for range 300 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			err := f.freezeAll(ctx, true)
			cancel()
			if asked, stopped, serr := f.state(); err != nil || serr != nil || !asked || !stopped {
				t.Fatalf("frozen by the freezer %s: %v, asked %t, stopped %t, %v", name, err, asked, stopped, serr)
			}
			if err := f.request(false); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.freezeAll(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if moves(t, file, 100*time.Millisecond) {
			t.Errorf("a process moves in the group frozen by the freezer %s", name)
		}
		if err := f.request(false); err != nil {
			t.Fatal(err)
		}
		if !moves(t, file, time.Minute) {
			t.Errorf("no process moves in the group thawed by the freezer %s", name)
		}
	}
}

// TestFreezeWhileProgramsAreReplaced freezes programs of several threads that execute themselves all the time, as runtimes
// do when they start a command: a thread that waits in execve for the other threads cannot freeze if these are frozen.
func TestFreezeWhileProgramsAreReplaced(t *testing.T) {
	t.Parallel()
	g, freezers := newGroup(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "n")
	for range 4 {
		work(t, g, "exec env "+replaceItself+"="+file+" "+self)
	}
	for name, f := range freezers {
		for range 40 {
			if !moves(t, file, time.Minute) {
				t.Fatal("no process moves")
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			err := f.freezeAll(ctx, true)
			cancel()
			if _, stopped, serr := f.state(); err != nil || serr != nil || !stopped {
				t.Fatalf("frozen by the freezer %s: %v, stopped %t, %v", name, err, stopped, serr)
			}
			if err := f.request(false); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestFreezeThatIsGivenUp leaves no process frozen.
func TestFreezeThatIsGivenUp(t *testing.T) {
	t.Parallel()
	g, _ := newGroup(t)
	file := filepath.Join(t.TempDir(), "n")
	for range 4 {
		work(t, g, "while :; do : > "+file+"; done")
	}
	why := errors.New("given up")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	for end := time.Now().Add(time.Minute); ; {
		err := g.Freeze(ctx)
		if errors.Is(err, why) {
			break
		}
		if terr := g.Thaw(); err != nil || terr != nil || time.Now().After(end) {
			t.Fatalf("frozen, though given up at once: %v; %v", err, terr)
		}
	}
	f, err := g.freezer()
	if err != nil {
		t.Fatal(err)
	}
	if asked, stopped, err := f.state(); asked || stopped || err != nil {
		t.Errorf("asked %t, stopped %t, %v", asked, stopped, err)
	}
	if !moves(t, file, time.Minute) {
		t.Error("no process moves")
	}
}

// TestSettle completes an interrupted freeze, and does not start one.
func TestSettle(t *testing.T) {
	t.Parallel()
	g, _ := newGroup(t)
	file := filepath.Join(t.TempDir(), "n")
	for range 4 {
		work(t, g, "while :; do /bin/true; : > "+file+"; done")
	}
	f, err := g.freezer()
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := g.CompleteFreeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		if asked, _, err := f.state(); asked || err != nil {
			t.Fatalf("a group that was not being frozen: requested %t, %v", asked, err)
		}
		if err := errors.Join(f.request(true), g.CompleteFreeze(t.Context())); err != nil {
			t.Fatal(err)
		}
		if _, stopped, err := f.state(); !stopped || err != nil {
			t.Fatalf("a group that was being frozen: stopped %t, %v", stopped, err)
		}
		if err := g.Thaw(); err != nil {
			t.Fatal(err)
		}
	}
	if !moves(t, file, time.Minute) {
		t.Error("no process moves")
	}
}

// TestFreezeWithoutAGroup: freezing a missing group fails with that reason; thawing and settling it are no-ops.
func TestFreezeWithoutAGroup(t *testing.T) {
	t.Parallel()
	g := Group(fmt.Sprintf("/boxgate-test-none-%d", os.Getpid()))
	if err := g.Freeze(t.Context()); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), string(g)) {
		t.Errorf("freezing: %v", err)
	}
	if err := errors.Join(g.Thaw(), g.CompleteFreeze(t.Context())); err != nil {
		t.Error(err)
	}
}

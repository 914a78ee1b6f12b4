package trash

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// TestBusyHostRemovesFiles: the removal of files gives way to others, and yet continues while they use all CPU time:
// otherwise a busy host would never reclaim the disk space of deleted boxes.
func TestBusyHostRemovesFiles(t *testing.T) {
	const n = 6_000
	dir := t.TempDir()
	trash := New(mkdir(t, dir, "trash"), zap.NewNop())
	full := mkdir(t, dir, "box")
	for i := range n {
		if err := os.WriteFile(filepath.Join(full, strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	other := oneCPUAndNeighbour(t)
	if err := trash.Move(full); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	ended := make(chan struct{})
	defer func() { stop(); <-ended }()
	own0, others0 := ownCPUTime(t), cpuTime(t, other)
	go func() {
		defer close(ended)
		trash.KeepEmpty(ctx)
	}()
	for left := 1; left > 0; left, _ = trash.Count() {
		if ctx.Err() != nil {
			t.Fatal("the files are not removed")
		}
		time.Sleep(50 * time.Millisecond)
	}
	own, others := ownCPUTime(t)-own0, cpuTime(t, other)-others0
	t.Logf("%d files removed in %v of CPU time; the neighbour had %v", n, own, others)
	if others > 12*own {
		t.Errorf("a busy neighbour had %v of CPU time while the removal had %v: it would starve where there are many", others, own)
	}
	if nightly.Enabled() && others < own { // otherwise a third program may have taken the neighbour's share
		t.Errorf("a busy neighbour had %v of CPU time while the removal had %v, which does not give way", others, own)
	}
}

// oneCPUAndNeighbour keeps this process on one CPU until the test ends, and starts a process there that is always busy. It
// returns its pid.
func oneCPUAndNeighbour(t *testing.T) (pid int) {
	t.Helper()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; ; cpu++ {
		if all.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	moveThreads(t, &one)
	t.Cleanup(func() { moveThreads(t, &all) })
	busy := exec.Command("sh", "-c", "while :; do :; done")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = busy.Process.Kill()
		_ = busy.Wait()
	})
	return busy.Process.Pid
}

// moveThreads moves all threads of this process, and threads that they start, to the given CPUs.
func moveThreads(t *testing.T, to *unix.CPUSet) {
	t.Helper()
	for range 2 { // a thread may have been started by one that had not been moved yet
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			tid, err := strconv.Atoi(thread.Name())
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.SchedSetaffinity(tid, to); err != nil && err != unix.ESRCH {
				t.Fatal(err)
			}
		}
	}
}

// ownCPUTime returns how long the threads of this process, those that ended too, have been on a CPU.
func ownCPUTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cpuTime returns how long the first thread of a process has been on a CPU.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		t.Fatal(err)
	}
	ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(ns)
}

func mkdir(t *testing.T, parent, name string) string {
	t.Helper()
	dir := filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

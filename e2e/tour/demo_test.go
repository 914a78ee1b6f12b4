package tour

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// TestDemo runs the tour as a user does: every step happens, and nothing is left behind.
func TestDemo(t *testing.T) {
	t.Parallel()
	var out lab.SyncBuffer
	if err := lab.RunDemo(t.Context(), &out, harness.ImageDir()); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if got := strings.Count(out.String(), "  ok      "); got < 10 {
		t.Errorf("the summary has %d steps:\n%s", got, out.String())
	}
}

// TestDemoFailsWhenAStepDoesNotHappen: an interrupted tour says so, and cleans up all the same.
func TestDemoFailsWhenAStepDoesNotHappen(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out lab.SyncBuffer
	err := lab.RunDemo(ctx, &out, harness.ImageDir())
	if err == nil {
		t.Fatalf("an interrupted demo claims to be complete:\n%s", out.String())
	}
	harness.Contains(t, out.String(), "FAILED")
}

// TestInterruptedDemoIsCleanedUp kills a demo's process half-way; what it left is removed by the next one.
func TestInterruptedDemoIsCleanedUp(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out lab.SyncBuffer
	cmd := harness.ExecDetached(self, "demo", "--image-dir", harness.ImageDir())
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := out.Await(t.Context(), "launched"); err != nil {
		t.Fatal(err)
	}
	if err := out.Await(t.Context(), "server's own record"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	dir := labDirIn(t, out.String())
	if err := lab.RemoveStaleLabs(); err != nil {
		t.Fatal(err)
	}
	// Another demo or run of the tests that starts just now may have been quicker, and still be at it.
	var left []string
	for limit := time.Now().Add(30 * time.Second); time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
		if left, err = lab.Traces(dir); err == nil && len(left) == 0 {
			return
		}
	}
	t.Errorf("left behind: %v %v", left, err)
}

// labDirIn finds the lab's directory in what a demo printed.
func labDirIn(t *testing.T, out string) string {
	t.Helper()
	_, rest, ok := strings.Cut(out, "admin API on ")
	if !ok {
		t.Fatalf("no admin socket in:\n%s", out)
	}
	line, _, _ := strings.Cut(rest, "\n")
	return filepath.Dir(line)
}

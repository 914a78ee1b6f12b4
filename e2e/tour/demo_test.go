package tour

import (
	"os"
	"os/exec"
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
	harness.TakeSlot(t)
	var out lab.SyncBuffer
	cmd := exec.CommandContext(t.Context(), harness.Gateway(), "demo", "--image-dir", harness.ImageDir())
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if got := strings.Count(out.String(), "  ok      "); got < 10 {
		t.Errorf("the summary has %d steps:\n%s", got, out.String())
	}
	_, seen, _ := strings.Cut(out.String(), "What you saw")
	if lines := strings.Count(seen, "\n   - "); lines != 5 {
		t.Errorf("it ends with %d lines of what was seen:\n%s", lines, out.String())
	}
}

// TestDemoStaysOpen: with --keep the lab can be used by the commands that it shows, until Enter; then nothing is left.
func TestDemoStaysOpen(t *testing.T) {
	t.Parallel()
	harness.TakeSlot(t)
	var out lab.SyncBuffer
	cmd := harness.ExecDetached(harness.Gateway(), "demo", "--keep", "--image-dir", harness.ImageDir())
	cmd.Stdout, cmd.Stderr = &out, &out
	enter, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if err := out.Await(t.Context(), "Press Enter"); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	dir := labDirIn(t, out.String())
	_, shown, _ := strings.Cut(out.String(), "The lab stays open")
	allowed := false
	for line := range strings.Lines(shown) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "gateway" || words[2] == "shell" {
			continue
		}
		try := exec.CommandContext(t.Context(), harness.Gateway(), words[1:]...)
		try.Env = append(os.Environ(), "BOXGATE_CONFIG="+filepath.Join(dir, "boxgate.yaml"))
		text, err := try.CombinedOutput()
		if refused := words[2] == "exec" && !allowed; refused == (err == nil) && words[1] != "status" || len(text) == 0 {
			t.Errorf("%s: %v: %s", strings.TrimSpace(line), err, text)
		}
		allowed = allowed || words[1] == "policy"
	}
	if _, err := enter.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	if left, err := lab.Traces(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// TestInterruptedDemoIsCleanedUp kills a demo's process half-way; what it left is removed by the next one.
func TestInterruptedDemoIsCleanedUp(t *testing.T) {
	t.Parallel()
	harness.TakeSlot(t)
	var out lab.SyncBuffer
	cmd := harness.ExecDetached(harness.Gateway(), "demo", "--image-dir", harness.ImageDir())
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
	// Another demo or run of the tests that starts just now may have been quicker, and still be at it: it waits up to a minute
	// for the gateway to end.
	var left []string
	var err error
	for limit := time.Now().Add(3 * time.Minute); time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
		if err := lab.RemoveStaleLabs(); err != nil {
			t.Fatal(err)
		}
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

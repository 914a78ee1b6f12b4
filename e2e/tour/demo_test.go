package tour

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/e2e/harness"
	"boxgate/fleet/etcdtest"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
	"boxgate/internal/testnet"
)

// TestDemo runs the tour as a user does: every step succeeds, and no traces remain.
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

// TestDemoStaysOpen: with --keep the printed commands work in the lab until Enter. Then no traces remain.
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

// TestDemoEndsWithASignal: `gateway demo` becomes the process of the demo, which ends on Ctrl-C, lists the steps it did
// not reach, and leaves no traces.
func TestDemoEndsWithASignal(t *testing.T) {
	t.Parallel()
	harness.TakeSlot(t)
	var out lab.SyncBuffer
	cmd := harness.ExecDetached(harness.Gateway(), "demo", "--json", "--image-dir", harness.ImageDir())
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if err := out.Await(t.Context(), "admin API on "); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	dir := labDirIn(t, out.String())
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if said := out.String(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(said, `{"error":"the demo is not complete`) {
		t.Errorf("%v\n%s", err, said)
	}
	if left, err := lab.Traces(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// TestInterruptedDemoIsCleanedUp kills a demo halfway. The next demo removes its remains.
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
	// Another demo or test run that starts at the same time may have begun first: it waits up to a minute for the
	// gateway to end.
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

// fleetDemo starts the tour of a fleet in a network namespace of its own, with a shorter lease. traces returns its leftovers.
func fleetDemo(t *testing.T, out *lab.SyncBuffer) (cmd *exec.Cmd, traces func() []string) {
	t.Helper()
	harness.TakeSlot(t)
	ns, err := testnet.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.End() })
	network := func() (text string) {
		for _, line := range []string{"ip -br link", "ip -br address", "nft list ruleset", "ip netns list-id"} {
			shown, err := ns.Run(t.Context(), "sh", "-c", line)
			if err != nil {
				t.Fatalf("%s: %v: %s", line, err, shown)
			}
			text += shown
		}
		return text
	}
	before := network()
	cmd = harness.ExecDetached(harness.Gateway(), "demo", "--fleet", "--etcd", etcdtest.Program(t), "--image-dir", harness.ImageDir())
	cmd.Env = append(os.Environ(), harness.LeaseVariable+"=6s")
	cmd.Stdout, cmd.Stderr = out, out
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, func() (left []string) {
		if after := network(); after != before {
			left = append(left, "network: "+after)
		}
		if running, err := ns.Processes(); err != nil || len(running) > 0 {
			left = append(left, fmt.Sprint("processes ", running, err))
		}
		for _, part := range strings.Split(out.String(), "admin API on ")[1:] {
			socket, _, _ := strings.Cut(part, "\n")
			traces, err := lab.Traces(filepath.Dir(socket))
			if err != nil {
				t.Fatal(err)
			}
			left = append(left, traces...)
		}
		return left
	}
}

// TestFleetDemo: every step of the tour of a fleet succeeds, and no traces remain.
func TestFleetDemo(t *testing.T) {
	t.Parallel()
	var out lab.SyncBuffer
	cmd, traces := fleetDemo(t, &out)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if got := strings.Count(out.String(), "  ok      "); got != 9 || strings.Count(out.String(), "admin API on ") != 3 {
		t.Errorf("the summary has %d steps:\n%s", got, out.String())
	}
	if left := traces(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestFleetDemoEndsWithASignal: while a host is cut off, Ctrl-C ends the tour of a fleet, and no traces remain. Nor do they if the demo is
// killed, once the next one has begun.
func TestFleetDemoEndsWithASignal(t *testing.T) {
	t.Parallel()
	var out lab.SyncBuffer
	cmd, traces := fleetDemo(t, &out)
	if err := out.Await(t.Context(), "host-3 $ nft"); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(out.String(), "the demo is not complete") || !strings.Contains(out.String(), "Nothing is left behind") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if left := traces(); len(left) > 0 {
		t.Errorf("left behind: %v\n%s", left, out.String())
	}
	var second lab.SyncBuffer
	cmd, traces = fleetDemo(t, &second)
	if err := second.Await(t.Context(), "host-3 $ gateway fleet join"); err != nil {
		t.Fatalf("%v\n%s", err, second.String())
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	var left []string
	for limit := time.Now().Add(3 * time.Minute); time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
		if err := lab.RemoveStaleLabs(); err != nil {
			t.Fatal(err)
		}
		if left = traces(); len(left) == 0 {
			return
		}
	}
	t.Errorf("left behind: %v", left)
}

// labDirIn returns the lab's directory from the output of a demo.
func labDirIn(t *testing.T, out string) string {
	t.Helper()
	_, rest, ok := strings.Cut(out, "admin API on ")
	if !ok {
		t.Fatalf("no admin socket in:\n%s", out)
	}
	line, _, _ := strings.Cut(rest, "\n")
	return filepath.Dir(line)
}

// TestAttackAnotherProgramIsTheDemo: `gateway demo` runs the program in the gateway's directory, if no other user can
// write it, and never one from PATH or the working directory. Another gateway replaces the demo here: it reports an
// unknown flag.
func TestAttackAnotherProgramIsTheDemo(t *testing.T) {
	t.Parallel()
	nightly.Root(t) // the program is given to another user
	const began = "unknown flag --gateway"
	elsewhere := filepath.Join(t.TempDir(), "gateway-demo")
	copyProgram(t, elsewhere)
	for name, c := range map[string]struct {
		refused string // "": it runs
		spoil   func(dir, program string) error
	}{
		"as installed":         {"", func(_, _ string) error { return nil }},
		"missing":              {"make build", func(_, p string) error { return os.Remove(p) }},
		"another user's":       {"belongs to user 65534", func(_, p string) error { return os.Chown(p, 65534, 65534) }},
		"writable by others":   {"others may write to", func(_, p string) error { return os.Chmod(p, 0o777) }},
		"link":                 {"not a regular file", func(_, p string) error { return errors.Join(os.Remove(p), os.Symlink(elsewhere, p)) }},
		"another user's place": {"belongs to user 65534", func(dir, _ string) error { return os.Chown(dir, 65534, 65534) }},
		"place of all":         {"others may write to", func(dir, _ string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			gateway, program := filepath.Join(dir, "gateway"), filepath.Join(dir, "gateway-demo")
			copyProgram(t, program)
			if err := errors.Join(os.Link(elsewhere, gateway), os.Chmod(dir, 0o755), c.spoil(dir, program)); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), gateway, "demo", "--image-dir", harness.ImageDir())
			cmd.Dir, cmd.Env = filepath.Dir(elsewhere), append(os.Environ(), "PATH="+filepath.Dir(elsewhere)+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if ran := strings.Contains(string(out), began); ran != (c.refused == "") || err == nil {
				t.Errorf("it ran: %v; %v: %s", ran, err, out)
			}
			if !strings.Contains(string(out), c.refused) || c.refused != "" && cmd.ProcessState.ExitCode() != 1 {
				t.Errorf("it says %q, %v", out, err)
			}
		})
	}
}

// copyProgram copies the gateway under test to a directory that only root may change.
func copyProgram(t *testing.T, to string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "install", "-m", "755", harness.Gateway(), to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

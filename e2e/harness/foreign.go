package harness

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// boxesAreAttached is an environment variable. If it is set, the boxes of tests are created without the gateway, with
// every capability for their root, and attached.
const boxesAreAttached = "BOXGATE_TEST_ATTACHED"

// Attach is [World.Create] for a box that the gateway did not create. The box trusts the gateway's CA as described in
// docs/attach.md.
func (w *World) Attach(body map[string]any) string {
	w.T.Helper()
	f := NewForeignBox(w.T)
	body["pid"] = f.PID
	var made struct{ ID string }
	if err := w.Client.Do(w.T.Context(), "POST", "/v2/box/attach", body, &made); err != nil {
		w.T.Fatalf("attaching a box: %v", err)
	}
	text, code := w.GatewayCommand("ca", "--box", made.ID, "--bundle")
	bundle := filepath.Join(w.T.TempDir(), "bundle.pem")
	if err := os.WriteFile(bundle, []byte(text), 0o600); err != nil || code != 0 {
		w.T.Fatalf("gateway ca: %d %v %s", code, err, Tail(text, 500))
	}
	f.env = []string{"SSL_CERT_FILE=" + bundle, "CURL_CA_BUNDLE=" + bundle, "REQUESTS_CA_BUNDLE=" + bundle}
	w.foreign.Store(made.ID, f)
	return made.ID
}

// Adopt makes [World.Sh] and [World.Raid] work in a box that the test itself has attached.
func (w *World) Adopt(box string, f *ForeignBox) { w.foreign.Store(box, f) }

// AttachedRun prepares another run of this test binary. Its boxes are created without the gateway and attached.
func AttachedRun(ctx context.Context, tests ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^("+strings.Join(tests, "|")+")$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), boxesAreAttached+"=1", binaryVariable+"="+Gateway())
	return cmd
}

// ForeignBox is a sandbox that the gateway did not create: a process in new namespaces, which end with the test.
type ForeignBox struct {
	T   *testing.T
	PID int
	end func()
	env []string // environment of processes in it

	calls sync.WaitGroup // running calls of Sh, which end with the test
}

// End ends the process.
func (f *ForeignBox) End() { f.end() }

// NewForeignBox starts a sandbox. Its resolver does not exist, so the gateway must answer instead. lines are added to
// its resolv.conf.
func NewForeignBox(t *testing.T, lines ...string) *ForeignBox {
	t.Helper()
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver 192.0.2.99\noptions timeout:2\n"+strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "--net", "--mount", "sh", "-c", `mount --bind "$1" /etc/resolv.conf && echo ready && exec cat`, "sh", resolv)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the foreign box: %v", err)
		}
	})
	t.Cleanup(end)
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the foreign box did not start: %q %v", line, err)
	}
	f := &ForeignBox{T: t, PID: cmd.Process.Pid, end: end}
	t.Cleanup(f.calls.Wait) // the context of the test has ended, which kills the processes of Sh
	return f
}

// Sh runs a shell line in the sandbox. Its processes are killed at the end of the test: a client in a deleted box gets
// no reset and would wait forever.
func (f *ForeignBox) Sh(line string) (string, int) {
	f.T.Helper()
	f.calls.Add(1)
	defer f.calls.Done()
	cmd := exec.CommandContext(f.T.Context(), "nsenter", "-t", strconv.Itoa(f.PID), "-n", "-m", "sh", "-c", line)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &out, append(os.Environ(), f.env...)
	cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Setpgid: true}, time.Second
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	_ = cmd.Run()
	return out.String(), cmd.ProcessState.ExitCode()
}

// Path returns the path of its network namespace.
func (f *ForeignBox) Path() string { return "/proc/" + strconv.Itoa(f.PID) + "/ns/net" }

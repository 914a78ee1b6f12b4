package harness

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/e2e/harness/knobs"
	"boxgate/internal/lab"
	"boxgate/launcher"
	"boxgate/policy"
)

// Create creates a box and returns its ID.
func (w *World) Create(body map[string]any) string {
	w.T.Helper()
	if os.Getenv(boxesAreAttached) != "" {
		return w.Attach(body)
	}
	var made struct{ ID string }
	if err := w.Client.Do(w.T.Context(), "POST", "/v2/box", body, &made); err != nil {
		w.T.Fatalf("creating a box: %v", err)
	}
	return made.ID
}

// MustDelete deletes a box.
func (w *World) MustDelete(box string) {
	w.T.Helper()
	if err := w.Client.Do(w.T.Context(), "DELETE", api.BoxPath(box), nil, nil); err != nil {
		w.T.Fatalf("deleting box %s: %v", box, err)
	}
}

// Custom returns a custom policy that allows the domains.
func Custom(domains ...string) map[string]any {
	return map[string]any{"mode": "custom", "allowed_domains": domains}
}

// SetPolicy replaces a box's policy.
func (w *World) SetPolicy(box string, policy map[string]any) {
	w.T.Helper()
	if err := w.Client.Do(w.T.Context(), "PUT", api.BoxPath(box, "config/network-policy"), policy, nil); err != nil {
		w.T.Fatalf("setting the policy: %v", err)
	}
}

// TestSecret is the key of [World.SecretBox]. It must never be in the box.
const TestSecret = knobs.Secret

// SecretBox creates a box that may reach only api.example.com, with a key attached there.
func (w *World) SecretBox() string {
	return w.Create(map[string]any{
		"network_policy": Custom("api.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"Authorization": "Bearer " + TestSecret}},
	})
}

// ExecMost bounds a command in a box. It is only for commands that hang: transferring a gibibyte takes minutes on a
// busy machine.
const ExecMost = 10 * time.Minute

// Sh runs a shell line in a box and returns its output and its exit code.
func (w *World) Sh(box, line string) (string, int) {
	w.T.Helper()
	if f, ok := w.foreign.Load(box); ok {
		return f.(*ForeignBox).Sh(line)
	}
	ctx, cancel := context.WithTimeout(w.T.Context(), ExecMost)
	defer cancel()
	var out bytes.Buffer
	code, err := w.Client.Exec(ctx, box, api.ExecRequest{Command: []string{"sh", "-c", line}, User: userOfCommands()}, &out, &out)
	if err != nil {
		w.T.Fatalf("exec %q: %v (%s)", line, err, out.String())
	}
	return out.String(), code
}

// MustSh is [World.Sh] for a line that must succeed.
func (w *World) MustSh(box, line string) string {
	w.T.Helper()
	out, code := w.Sh(box, line)
	if code != 0 {
		w.T.Fatalf("%q exited with %d: %s", line, code, out)
	}
	return out
}

// ShellResult is a shell line with its output and exit code.
type ShellResult struct {
	Line, Out string
	Code      int
}

// ShEach is [World.Sh] for several lines, each in a new shell. In a box launched by the gateway it runs all lines in
// one command, because starting a command takes ten times the CPU time of most lines.
func (w *World) ShEach(box string, lines ...string) []ShellResult {
	w.T.Helper()
	ran := make([]ShellResult, len(lines))
	if _, attached := w.foreign.Load(box); attached {
		for i, line := range lines {
			out, code := w.Sh(box, line)
			ran[i] = ShellResult{line, out, code}
		}
		return ran
	}
	mark := rand.Text()
	all, code := w.Sh(box, `for line in `+quoted(lines)+`; do sh -c "$line" </dev/null 2>&1; echo "`+mark+` $?"; done`)
	for i, line := range lines {
		out, rest, _ := strings.Cut(all, mark+" ")
		status, next, found := strings.Cut(rest, "\n")
		n, err := strconv.Atoi(status)
		if !found || err != nil {
			w.T.Fatalf("%q did not run to its end: %d %s", line, code, all)
		}
		ran[i], all = ShellResult{line, out, n}, next
	}
	return ran
}

// quoted quotes words for a shell.
func quoted(words []string) string {
	var out strings.Builder
	for _, word := range words {
		out.WriteString(" '" + strings.ReplaceAll(word, "'", `'\''`) + "'")
	}
	return out.String()
}

// Background starts a line in a box. wait waits for it and returns its exit code.
func (w *World) Background(box, line string, out io.Writer) (wait func() (int, error)) {
	type ended struct {
		code int
		err  error
	}
	done := make(chan ended, 1)
	ctx, cancel := context.WithTimeout(context.Background(), ExecMost)
	w.T.Cleanup(cancel)
	go func() {
		code, err := w.Client.Exec(ctx, box, api.ExecRequest{Command: []string{"sh", "-c", line}, User: userOfCommands()}, out, out)
		done <- ended{code, err}
	}()
	return func() (int, error) {
		e := <-done
		return e.code, e.err
	}
}

// InitOf returns the PID on the host of a box's first process.
func (w *World) InitOf(box string) int {
	w.T.Helper()
	l, err := launcher.New(launcher.Config{StateDir: filepath.Join(w.Dir, "state"), RunDir: lab.RunDir(w.Dir)})
	if err != nil {
		w.T.Fatal(err)
	}
	status, err := l.State(w.T.Context(), policy.BoxID(box))
	if err != nil || status.Pid == 0 {
		w.T.Fatalf("box %s: %+v %v", box, status, err)
	}
	return status.Pid
}

// PublicURL is a public URL with its credentials, as the API returns it on creation.
type PublicURL struct{ URL, Token, Username, Password string }

// Lease allows or denies destinations for a limited time, in addition to a box's policy.
func (w *World) Lease(box, action string, lasts time.Duration, entries ...string) {
	w.T.Helper()
	body := map[string]any{"action": action, "entries": entries, "expires_in": int(lasts / time.Second)}
	if err := w.Client.Do(w.T.Context(), "POST", api.BoxPath(box, "config/network-policy/leases"), body, nil); err != nil {
		w.T.Fatalf("%s for %v: %v", action, lasts, err)
	}
}

// Audit has the policy of a box audited for a time instead of enforced.
func (w *World) Audit(box string, lasts time.Duration) {
	w.T.Helper()
	body := map[string]any{"enforcement": "audit", "expires_in": int(lasts / time.Second)}
	if err := w.Client.Do(w.T.Context(), "PUT", api.BoxPath(box, "config/network-policy/enforcement"), body, nil); err != nil {
		w.T.Fatal(err)
	}
}

// Scorecard is the output of `gateway box selftest --json`.
type Scorecard struct {
	Tight      bool
	Status     api.SelfTestStatus
	Reason     string
	DurationMS int64 `json:"duration_ms"`
	Summary    struct{ Tight, Holes int }
	Probes     []struct{ Group, Attack, Family, Verdict, Why string }
}

// String lists the probes, one per line.
func (c Scorecard) String() string {
	var s strings.Builder
	for _, p := range c.Probes {
		fmt.Fprintf(&s, "%+v\n", p)
	}
	return s.String()
}

// SelfTest runs the command in a world and returns its card and exit status.
func (w *World) SelfTest(box string) (Scorecard, int) {
	w.T.Helper()
	cmd := w.Command(w.T.Context(), "box", "selftest", box, "--json")
	var errout strings.Builder
	cmd.Stderr = &errout
	out, _ := cmd.Output()
	var card Scorecard
	if err := json.Unmarshal(out, &card); err != nil {
		w.T.Fatalf("%v: %s%s", err, out, errout.String())
	}
	return card, cmd.ProcessState.ExitCode()
}

// IsTight fails the test unless the box is tight.
func (w *World) IsTight(box string) Scorecard {
	w.T.Helper()
	card, code := w.SelfTest(box)
	if !card.Tight || code != cli.ExitOK || card.Summary.Tight < 60 {
		w.T.Errorf("exit status %d, %d tight:\n%s", code, card.Summary.Tight, card)
	}
	if card.DurationMS > 30_000 {
		w.T.Errorf("the card took %d ms", card.DurationMS)
	}
	return card
}

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

// boxesAreRooted is an environment variable. If it is set, boxes are started with launcher.root, and [World.Sh] and
// [World.Background] run commands as their root.
const boxesAreRooted = "BOXGATE_TEST_ROOTED"

// Rooted reports whether this is a [RootedRun].
func Rooted() bool { return os.Getenv(boxesAreRooted) != "" }

// userOfCommands is the user of the API's commands in boxes.
func userOfCommands() string {
	if Rooted() {
		return "root"
	}
	return ""
}

// RootedRun prepares another run of this test binary, as [AttachedRun] does. Its boxes are started with launcher.root, and their
// commands run as root.
func RootedRun(ctx context.Context, tests ...string) *exec.Cmd {
	cmd := AttachedRun(ctx, tests...)
	cmd.Env = append(os.Environ(), boxesAreRooted+"=1", binaryVariable+"="+Gateway())
	return cmd
}

// Repeat fails the test unless the named tests of its package pass in another run of the test binary.
func Repeat(t *testing.T, run *exec.Cmd, tests ...string) {
	t.Helper()
	out, err := run.CombinedOutput()
	if err != nil {
		t.Errorf("%v:\n%s", err, Tail(string(out), 40_000))
	}
	for _, name := range tests {
		if !strings.Contains(string(out), "--- PASS: "+name+" ") {
			t.Errorf("%s did not pass", name)
		}
	}
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
	if err := os.WriteFile(resolv, []byte("nameserver 192.0.2.99\noptions timeout:2 attempts:5\n"+strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
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

// Contains fails the test unless text contains every part.
func Contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is not in:\n%s", p, text)
		}
	}
}

// Tail returns the last n bytes of s.
func Tail(s string, n int) string {
	if len(s) > n {
		return s[len(s)-n:]
	}
	return s
}

// Output returns what a command printed, whatever its exit code: for calls such as [World.Sh].
func Output(s string, _ int) string { return s }

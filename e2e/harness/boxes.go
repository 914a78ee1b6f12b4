package harness

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"boxgate/api"
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
	code, err := w.Client.Exec(ctx, box, api.ExecRequest{Command: []string{"sh", "-c", line}}, &out, &out)
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
		code, err := w.Client.Exec(ctx, box, api.ExecRequest{Command: []string{"sh", "-c", line}}, out, out)
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

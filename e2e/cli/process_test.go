package cli

import (
	"strings"
	"testing"
	"time"

	"boxgate/e2e/harness"
)

// TestBoxProcesses: a process goes on without the command that started it, has the PID that the box shows, is listed, attached to, fed and
// ended by others, and ends with the API key that started it.
func TestBoxProcesses(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	w.Create(map[string]any{"name": "p"})
	list := func() string { return w.Run(0, nil, "", "box", "ps", "p") }
	start := func(env []string, args ...string) string {
		return strings.TrimSpace(w.Run(0, env, "", append([]string{"box", "process", "start"}, args...)...))
	}
	pid := start(nil, "-i", "--tag", "mine", "--env", "B=b", "p", "--", "sh", "-c", `read a; echo "got $a $B"; exit 4`)
	if text := list(); !strings.Contains(text, pid) || !strings.Contains(text, "mine") {
		t.Errorf("%q has no %s", text, pid)
	}
	if name := w.Run(0, nil, "", "box", "exec", "p", "--", "cat", "/proc/"+pid+"/comm"); name != "sh\n" {
		t.Errorf("process %s of the box is %q", pid, name)
	}
	if out := w.Run(4, nil, "hello\n", "box", "process", "attach", "-i", "p", pid); out != "got hello b\n" {
		t.Errorf("%q", out)
	}
	if text := list(); strings.Contains(text, "mine") {
		t.Errorf("a process that has ended: %q", text)
	}
	pid = start(nil, "-t", "p", "--", "sleep", "1000")
	w.Run(0, nil, "", "box", "process", "signal", "p", pid, "SIGTERM")
	w.Run(143, nil, "", "box", "process", "attach", "p", pid)
	w.Run(1, nil, "", "box", "process", "signal", "p", "99999", "TERM")
	w.Run(2, nil, "", "box", "process", "attach", "p", "x")

	var key struct{ ID, Key string }
	if err := w.Client.Do(t.Context(), "POST", "/v2/api-keys", map[string]any{"name": "starter", "role": "one-box", "box": "p"}, &key); err != nil {
		t.Fatal(err)
	}
	pid = start([]string{"BOXGATE_API_KEY=" + key.Key}, "p", "--", "sleep", "2000")
	if text := list(); !strings.Contains(text, "sleep 2000") {
		t.Fatalf("%q", text)
	}
	if err := w.Client.Do(t.Context(), "DELETE", "/v2/api-keys/"+key.ID, nil, nil); err != nil {
		t.Fatal(err)
	}
	w.UntilEvery(50*time.Millisecond, "the process ends with its key", func() bool {
		return !strings.Contains(list(), "sleep 2000") && !strings.Contains(w.Run(0, nil, "", "box", "exec", "p", "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"), "sleep 2000 ")
	})
}

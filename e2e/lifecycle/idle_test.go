package lifecycle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// onOneConnection makes consecutive requests on a spliced connection.
const onOneConnection = `import http.client, ssl, time
c = http.client.HTTPSConnection("plain.example.com", context=ssl._create_unverified_context())
while True:
    c.request("GET", "/x"); c.getresponse().read(); time.sleep(0.2)
`

// oneUpload makes a request with an endless body.
const oneUpload = `import http.client, time
def body():
    while True:
        yield b"x" * 100; time.sleep(0.2)
http.client.HTTPConnection("plain.example.com").request("POST", "/x", body(), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
`

// dripping returns a program that begins messages and extends each byte by byte, without ever completing one.
func dripping(host string, port int, begins string) string {
	return fmt.Sprintf(`import socket, time
while True:
    try:
        c = socket.create_connection((%q, %d), 3)
        c.sendall(b"%s")
        while True:
            time.sleep(0.2); c.sendall(b"\x00" if %d == 443 else b"y")
    except OSError: time.sleep(0.2)
`, host, port, begins, port)
}

// TestIdleBoxIsPaused: only unused boxes are paused: not a box with a command that a client waits for, not one that
// sends or receives, not one with keep-alive. DNS queries, refusals and data sent before a decision do not count as
// use.
func TestIdleBoxIsPaused(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Launcher.IdleTimeout = 10 * time.Second })
	policy := harness.Custom("plain.example.com")
	loop := func(line string) string {
		box := w.Create(map[string]any{"network_policy": policy})
		w.MustSh(box, "setsid sh -c 'while :; do "+line+"; sleep 0.2; done' >/dev/null 2>&1 &")
		return box
	}
	lasts := func(program string) string {
		box := w.Create(map[string]any{"network_policy": policy})
		w.MustSh(box, "cat >p.py <<'END'\n"+program+"END\nsetsid python3 p.py >/dev/null 2>&1 &")
		return box
	}
	sends := loop("curl -s -m 5 -o /dev/null http://plain.example.com/x")
	spliced, uploads := lasts(onOneConnection), lasts(oneUpload)
	uses := w.Create(map[string]any{"network_policy": policy})
	kept := w.Create(map[string]any{"network_policy": policy, "keep_alive": true})
	wait := w.Background(uses, "until [ -e go ]; do sleep 0.1; done", new(bytes.Buffer))
	idle := []string{
		abandoned(w, policy, `while :; do echo y; sleep 0.1; done`),
		loop(":"), loop("getent hosts plain.example.com"), loop("getent hosts denied.example.net"),
		loop("curl -s -m 5 -o /dev/null http://evil.example.net/"),
		lasts(dripping("93.184.216.34", 443, `\x16\x03\x01\x02\x00\x01`)), lasts(dripping("plain.example.com", 80, `GET / HTTP/1.1\r\nx: `)),
	}
	for _, box := range idle {
		w.Until("an idle box is paused", func() bool { return status(w, box) == "paused" })
	}
	for what, box := range map[string]string{"sends": sends, "sends all on one connection": spliced, "uploads for long": uploads, "runs a command": uses, "is kept alive": kept} {
		if got := status(w, box); got == "paused" {
			t.Errorf("a box that %s is %s", what, got)
		}
	}
	w.MustSh(idle[0], "true")
	if got := status(w, idle[0]); got != "idle" {
		t.Errorf("after a command it is %s", got)
	}
	w.MustSh(uses, "touch go")
	if code, err := wait(); code != 0 || err != nil {
		t.Errorf("the command: %d %v", code, err)
	}
	w.Until("a box without its command is paused", func() bool { return status(w, uses) == "paused" })
}

// abandoned returns a box with a command whose client has disconnected.
func abandoned(w *harness.World, policy map[string]any, line string) string {
	w.T.Helper()
	box := w.Create(map[string]any{"network_policy": policy})
	ctx, cancel := context.WithTimeout(w.T.Context(), harness.Patience)
	defer cancel()
	begins := writerFunc(func(b []byte) (int, error) { cancel(); return len(b), nil })
	if _, err := w.Client.Exec(ctx, box, api.ExecRequest{Command: []string{"sh", "-c", line}}, begins, begins); !errors.Is(ctx.Err(), context.Canceled) {
		w.T.Fatal("the command has not begun:", err)
	}
	return box
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestOutputThatNobodyReadsIsThrownAwaySlowly: beyond a first amount, unread output is discarded at a limited rate, and
// the command waits. It still runs to its end. A command whose output is read does not wait.
func TestOutputThatNobodyReadsIsThrownAwaySlowly(t *testing.T) {
	t.Parallel()
	const mib, free, rate = 84, 64, 4 // free MiB are discarded at any speed, then rate MiB a second
	w := harness.Shared(t)
	box := w.Create(map[string]any{})
	dd := []string{"dd", "if=/dev/zero", "bs=1M", "count=" + strconv.Itoa(mib), "status=none"}
	var read atomic.Int64
	reads := writerFunc(func(b []byte) (int, error) { read.Add(int64(len(b))); return len(b), nil })
	if code, err := w.Client.Exec(t.Context(), box, api.ExecRequest{Command: dd}, reads, reads); code != 0 || err != nil || read.Load() != mib<<20 {
		t.Errorf("read: %d bytes, exit %d, %v", read.Load(), code, err)
	}
	var answer struct {
		ExitCode  int `json:"exit_code"`
		Truncated bool
	}
	begun := time.Now()
	if err := w.Client.Do(t.Context(), http.MethodPost, api.BoxPath(box, "exec"), map[string]any{"command": dd}, &answer); err != nil || answer.ExitCode != 0 || !answer.Truncated {
		t.Fatal(answer, err)
	}
	if took, least := time.Since(begun), (mib-free)*time.Second/rate*3/4; took < least {
		t.Errorf("%d MiB were thrown away in %v, for which there are %v", mib, took, least)
	}
}

// TestIdlePauseNeverDuringUse floods a box with commands, between which it is paused all the time. No command fails or
// finds the box paused.
func TestIdlePauseNeverDuringUse(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Launcher.IdleTimeout = 10 * time.Millisecond })
	box := w.Create(map[string]any{})
	var all sync.WaitGroup
	for worker := range 3 {
		all.Go(func() {
			for i := range 8 {
				var out bytes.Buffer
				code, err := w.Client.Exec(t.Context(), box, api.ExecRequest{Command: []string{"echo", "x"}}, &out, &out)
				if err != nil || code != 0 || out.String() != "x\n" {
					t.Errorf("command %d: %d %v %q", i, code, err, out.String())
				}
				time.Sleep(time.Duration(worker*10) * time.Millisecond) // long enough for the box to be paused at times
			}
		})
	}
	all.Wait()
	w.Until("at last it sleeps", func() bool { return status(w, box) == "paused" })
}

// TestIdleBoxThatCannotBePaused: if pausing fails, it is retried after the timeout and not at the next check: each
// attempt may take seconds, during which no other box is paused.
func TestIdleBoxThatCannotBePaused(t *testing.T) {
	t.Parallel()
	const after = 3 * time.Second
	w := harness.NewStopped(t, lab.Options{Change: func(c *config.Config) { c.Launcher.IdleTimeout = after }})
	w.Env = append(w.Env, harness.FaultsFile+"="+w.FaultsPath())
	w.StartIfStopped()
	w.Arm(harness.FaultError, "pause: box frozen")
	box := w.Create(map[string]any{})
	var paused []time.Time
	w.Until("it sleeps", func() bool {
		paused = timesOf(t, w.LogText(), "an idle box is paused")
		return len(paused) == 1
	})
	failed := timesOf(t, w.LogText(), "a box could not be paused")
	if len(failed) != 1 {
		t.Fatalf("it failed at %v and was paused at %v", failed, paused)
	}
	if apart := paused[0].Sub(failed[0]); apart < after {
		t.Errorf("it was tried again after %v", apart)
	}
	w.MustSh(box, "true")
}

// timesOf returns the times at which a message was logged.
func timesOf(t *testing.T, log, message string) (times []time.Time) {
	t.Helper()
	for line := range strings.Lines(log) {
		var entry struct {
			Time time.Time
			Msg  string
		}
		if strings.Contains(line, message) && json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == message {
			times = append(times, entry.Time)
		}
	}
	return times
}

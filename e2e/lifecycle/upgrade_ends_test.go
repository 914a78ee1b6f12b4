package lifecycle

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/secrets"
)

// drained returns a gateway that was upgraded while a stream was open. Its first process drains the stream.
func drained(t *testing.T) (u *upgrading, g guest, size func() int64, ended chan int) {
	t.Helper()
	u = newUpgrading(t, nil)
	g = u.guest()
	size, ended = u.stream(g, "https://www.example.com/sse")
	u.mustReplace("upgrade")
	u.goesOn("the stream", size)
	return u, g, size, ended
}

// askAnew uses a new connection to the admin API: open connections belong to the first process.
func (u *upgrading) askAnew() {
	u.T.Helper()
	client, err := u.Dial()
	if err != nil {
		u.T.Fatal(err)
	}
	u.Client = client
}

// When the serving process is killed, its predecessor no longer learns of policy changes: it cuts the connections it
// drains, and boxes are closed until the next start.
func TestDrainingEndsWithTheSuccessor(t *testing.T) {
	t.Parallel()
	u, g, _, ended := drained(t)
	u.endBy(unix.SIGKILL)
	u.Until("the stream is cut", func() bool { return len(ended) == 1 })
	u.AwaitExit("without a successor")
	if g.reaches() {
		t.Error("the box reaches something without a gateway")
	}
	u.StartIfStopped()
	if !g.reaches() {
		t.Error("the box does not reach what it may, with the next gateway")
	}
}

// When the draining process is killed its connections end, and the serving process continues.
func TestTheSuccessorOutlivesItsPredecessor(t *testing.T) {
	t.Parallel()
	u, g, _, ended := drained(t)
	if err := u.Process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	u.Until("the stream is cut", func() bool { return len(ended) == 1 })
	u.askAnew()
	u.setPolicy(g, "api.example.com")
	if !g.reaches() {
		t.Error("the box does not reach what it may")
	}
}

// A draining process that does not respond is killed before a change is answered.
func TestAPredecessorThatHangsIsKilled(t *testing.T) {
	t.Parallel()
	u, g, _, ended := drained(t)
	if err := u.Process.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	u.Until("it hangs", func() bool { return stopped(u.Process.Process.Pid) })
	u.askAnew()
	u.setPolicy(g, "api.example.com")
	u.Until("the process is gone", func() bool { return errors.Is(unix.Kill(u.Process.Process.Pid, 0), unix.ESRCH) })
	u.Until("the stream is cut", func() bool { return len(ended) == 1 })
}

// stopped reports whether every thread of a process has been stopped by a signal.
func stopped(id int) bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", id))
	if err != nil || len(stats) == 0 {
		return false
	}
	for _, path := range stats {
		if stat, err := os.ReadFile(path); err == nil && !strings.Contains(string(stat), ") T ") {
			return false
		}
	}
	return true
}

// Deleting a box also cuts its connections in the predecessor.
func TestADeletedBoxIsCutWhereItDrains(t *testing.T) {
	t.Parallel()
	u, g, _, _ := drained(t)
	u.MustDelete(g.id)
	u.Until("the event says why", func() bool { return strings.Contains(u.LogText(), `"error":"the box was removed"`) })
}

// Connections with a secret that its source has removed are cut in the draining process too.
func TestASecretThatIsGoneIsCutWhereItDrains(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(harness.TestSecret), 0o600); err != nil {
		t.Fatal(err)
	}
	u := newUpgrading(t, func(c *config.Config) {
		c.Secrets.Sources = map[string]secrets.Source{"key": {File: key, Refresh: time.Second}}
	})
	u.StartIfStopped()
	g := attachGuests(t, u.World, 1)[0]
	u.setPolicy(g, "api.example.com", "www.example.com")
	headers := map[string]any{"api.example.com": map[string]any{"headers": map[string]any{"X-Key": map[string]string{"secret": "key"}}}}
	if err := u.Client.Do(t.Context(), http.MethodPut, api.BoxPath(g.id, "config/attach-headers"), map[string]any{"attach_headers": headers}, nil); err != nil {
		t.Fatal(err)
	}
	with, ended := u.stream(g, "https://api.example.com/sse")
	without, _ := u.stream(g, "https://www.example.com/sse")
	u.mustReplace("upgrade")
	u.goesOn("the stream with the secret", with)
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	u.Until("the stream with the secret is cut", func() bool { return len(ended) == 1 })
	u.goesOn("the stream without it", without)
}

// Connections still open at the end of the drain time are cut, with a reason.
func TestDrainingHasAnEnd(t *testing.T) {
	t.Parallel()
	u := newUpgrading(t, func(c *config.Config) { c.Drain = 1 })
	g := u.guest()
	_, ended := u.stream(g, "https://www.example.com/sse")
	u.mustReplace("upgrade")
	u.Until("the stream is cut", func() bool { return len(ended) == 1 })
	u.Until("the event says why", func() bool { return strings.Contains(u.LogText(), `"error":"the gateway was shut down"`) })
	u.setPolicy(g, "api.example.com")
}

// A gateway that is stopped gracefully answers queries until everything else has ended.
func TestAStopKeepsAnsweringQueries(t *testing.T) {
	t.Parallel()
	u := newUpgrading(t, nil)
	g := u.guest()
	u.Arm(harness.FaultWait, "stop: no more changes")
	if err := u.Process.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	u.Until("the gateway is stopping", func() bool { return !u.Armed() })
	if out, code := g.Sh("getent ahosts api.example.com"); code != 0 {
		t.Errorf("a query while the gateway stops: exit %d %s", code, out)
	}
	u.Release()
	u.AwaitExit("stopped")
}

// A gateway that is stopped during its replacement also ends the successor, which the service manager does not know
// about. Boxes are closed until the next start.
func TestAStopWhileAnotherProcessTakesThePlaceEndsBoth(t *testing.T) {
	t.Parallel()
	u := newUpgrading(t, nil)
	g := u.guest()
	u.Arm(harness.FaultWait, "replace: let go")
	answered := make(chan replaced, 1)
	go func() { answered <- u.replace(t.Context(), "upgrade") }()
	u.Until("the gateway has let go", func() bool { return !u.Armed() })
	successor := u.successor()
	if err := unix.Kill(successor, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(successor, unix.SIGCONT) })
	u.Until("the successor stands still", func() bool { return stopped(successor) })
	u.Release()
	u.Until("the gateway goes on", func() bool { return !u.Waiting() })
	u.Arm(harness.FaultWait, "stop: begun")
	if err := u.Process.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	u.Until("the gateway is stopping", func() bool { return !u.Armed() })
	if err := unix.Kill(successor, unix.SIGCONT); err != nil { // the successor takes over
		t.Fatal(err)
	}
	if r := <-answered; r.Replaced || !strings.Contains(r.Error, "the gateway is being stopped") {
		t.Errorf("%+v", r)
	}
	u.Until("the successor has ended", func() bool { return errors.Is(unix.Kill(successor, 0), unix.ESRCH) })
	u.Release()
	u.AwaitExit("stopped")
	if g.reaches() {
		t.Error("the box reaches something without a gateway")
	}
	u.StartIfStopped()
	if !g.reaches() {
		t.Error("the box does not reach what it may, with the next gateway")
	}
}

// successor returns the process that the gateway has started as its replacement.
func (u *upgrading) successor() int {
	u.T.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		u.T.Fatal(err)
	}
	for _, path := range stats {
		stat, _ := os.ReadFile(path) // empty if the process has ended
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields, words := strings.Fields(rest), strings.Split(string(line), "\x00")
		if len(fields) > 1 && fields[1] == strconv.Itoa(u.Process.Process.Pid) && len(words) > 1 && words[1] == "serve" {
			id, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				u.T.Fatal(err)
			}
			return id
		}
	}
	u.T.Fatal("there is no successor")
	return 0
}

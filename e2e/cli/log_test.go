package cli

import (
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/e2e/harness"
)

// logCommand is a running `gateway log -f`.
type logCommand struct {
	cmd   *exec.Cmd
	ended chan struct{}

	mu   sync.Mutex
	text bytes.Buffer
}

// Write collects the output of the command.
func (c *logCommand) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(b)
}

func (c *logCommand) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// followLog starts `gateway log -f`.
func followLog(w *harness.World, env []string, args ...string) *logCommand {
	w.T.Helper()
	c := &logCommand{cmd: w.Command(w.T.Context(), append([]string{"log", "-f"}, args...)...), ended: make(chan struct{})}
	c.cmd.Env = append(c.cmd.Env, env...)
	c.cmd.Stdout, c.cmd.Stderr = c, io.Writer(c)
	if err := c.cmd.Start(); err != nil {
		w.T.Fatal(err)
	}
	go func() {
		defer close(c.ended)
		_ = c.cmd.Wait()
	}()
	w.T.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.ended
		if w.T.Failed() {
			w.T.Logf("gateway log -f printed:\n%s", c)
		}
	})
	return c
}

// decisions counts the decisions about a name. Lines that begin with a space are hints about one.
func decisions(log, name string) int {
	n := 0
	for line := range strings.Lines(log) {
		if !strings.HasPrefix(line, " ") && strings.Contains(line, name) {
			n++
		}
	}
	return n
}

// TestLogFollowsTheGatewayAcrossRestarts: whether the gateway is stopped or killed, each decision is printed once, and
// possible gaps are reported. The command fails with a message when the gateway stays away or refuses its key.
func TestLogFollowsTheGatewayAcrossRestarts(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	log := followLog(w, nil)
	short := followLog(w, nil, "--reconnect", "10s", "--denied")
	keyed := followLog(w, []string{"BOXGATE_API_KEY=" + strings.TrimSpace(w.KeyFile("api-key"))})
	n := 0
	try := func() {
		n++
		w.MustSh(box, fmt.Sprintf("getent ahostsv4 try%d.example.net || true", n))
		for _, c := range []*logCommand{log, short, keyed} {
			w.Until("the decision is printed", func() bool { return strings.Contains(c.String(), fmt.Sprintf("try%d.example.net", n)) })
		}
	}
	try()
	for _, end := range []func() error{w.Stop, func() error { w.Kill(); return nil }} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		gaps := strings.Count(log.String(), `{"gap":`)
		try()
		if strings.Count(log.String(), `{"gap":`) <= gaps-1 || !strings.Contains(log.String(), "restarted") {
			t.Error("that decisions may be missing is not said")
		}
	}
	for i := range n {
		if lines := decisions(log.String(), fmt.Sprintf("try%d.example.net", i+1)); lines != 1 {
			t.Errorf("decision %d is printed %d times", i+1, lines)
		}
	}
	if remedies := strings.Count(log.String(), "to allow it: gateway policy allow "+box+" try1.example.net:443 (port 443 alone"); remedies != 1 {
		t.Errorf("what to do about the first denial is said %d times", remedies)
	}
	w.Run(0, nil, "", "api-key", "rotate")
	<-keyed.ended
	if code := keyed.cmd.ProcessState.ExitCode(); code != cli.ExitFailed || !strings.Contains(keyed.String(), "key") {
		t.Errorf("with a key that is refused: exit %d", code)
	}
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-short.ended:
	case <-time.After(harness.Patience):
		t.Fatal("it waits forever for a gateway that is gone")
	}
	if code := short.cmd.ProcessState.ExitCode(); code != cli.ExitFailed || !strings.Contains(short.String(), "did not come back within 10s") {
		t.Errorf("without a gateway: exit %d", code)
	}
	select {
	case <-log.ended:
		t.Error("the patient one has ended")
	default:
	}
}

// TestMetricsOfTheProcess: the metrics used by dashboards of Go programs exist.
func TestMetricsOfTheProcess(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	text, err := w.Net.Gateway().Run(t.Context(), "curl", "-sS", "--fail", "http://127.0.0.1:9600/metrics")
	if err != nil {
		t.Fatal(err, text)
	}
	for _, name := range []string{"go_goroutines ", "go_memstats_heap_inuse_bytes ", "process_open_fds ", "process_resident_memory_bytes ",
		"process_start_time_seconds ", "go_info{", "boxgate_build_info{"} {
		if !strings.Contains(text, "\n"+name) {
			t.Errorf("no %s", name)
		}
	}
}

package enclosure

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"boxgate/e2e/harness"
)

// TestRunPassesStatusAndSignalsOn: in a shell's terms.
func TestRunPassesStatusAndSignalsOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for line, want := range map[string]int{"exit 3": 3, "kill -9 $$": 137, "true": 0} {
		if r := w.run("-q", "--", "sh", "-c", line); r.status != want {
			t.Errorf("%s: exit %d, not %d\n%s", line, r.status, want, r.errout)
		}
	}
	if r := w.run("--", "no-such-program"); r.status != 127 || !strings.Contains(r.errout, `no program "no-such-program"`) {
		t.Errorf("no program: exit %d\n%s", r.status, r.errout)
	}
	if r := w.run("--", w.home()); r.status != 126 {
		t.Errorf("a directory: exit %d\n%s", r.status, r.errout)
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1} {
		c := w.start("sh", "-c", fmt.Sprintf("trap 'exit %d' %d; echo ready; while :; do sleep 0.1; done", 40+int(sig), int(sig)))
		c.until("ready")
		_ = c.cmd.Process.Signal(sig)
		if status := c.wait(); status != 40+int(sig) {
			t.Errorf("%v: exit %d\n%s", sig, status, c)
		}
	}
	c := w.start("sh", "-c", "echo ready; sleep 1000")
	c.until("ready")
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	if status := c.wait(); status != 128+15 {
		t.Errorf("not caught: exit %d\n%s", status, c)
	}
}

// running is a `gateway run` that has been started.
type running struct {
	w   *world
	cmd *exec.Cmd

	mu   sync.Mutex
	text bytes.Buffer
}

func (c *running) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(b)
}

func (c *running) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// start starts a command under deny-all.
func (w *world) start(args ...string) *running { return w.startUnder(nil, args...) }

func (w *world) startUnder(flags []string, args ...string) *running {
	w.T.Helper()
	c := &running{w: w, cmd: w.command(append(append(flags, "--"), args...)...)}
	c.cmd.Stdout, c.cmd.Stderr = c, c
	c.cmd.WaitDelay = time.Second // surviving children may hold its output open
	if err := w.Net.Gateway().Start(c.cmd); err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = c.cmd.Process.Kill(); _ = c.cmd.Wait() })
	return c
}

func (c *running) until(text string) {
	c.w.T.Helper()
	c.w.Until("the command prints "+text, func() bool { return strings.Contains(c.String(), text) })
}

// wait returns the exit status.
func (c *running) wait() int {
	c.w.T.Helper()
	guard := time.AfterFunc(harness.Patience, func() {
		c.w.T.Errorf("the command does not end:\n%s", c)
		_ = c.cmd.Process.Kill()
	})
	defer guard.Stop()
	_ = c.cmd.Wait()
	return c.cmd.ProcessState.ExitCode()
}

// processes returns the processes of the host with an argument that contains a text.
func processes(text string) []int {
	var out []int
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		data, err := os.ReadFile(path)
		if err == nil && bytes.Contains(data, []byte(text)) {
			pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
			out = append(out, pid)
		}
	}
	return out
}

// TestRunLeavesNothing: it leaves no traces, neither when it ends nor when it is killed, whatever the command has
// started. While it runs, the host's links, rules and routes are unchanged.
func TestRunLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.hostNetwork()
	mark := "boxgate-leaves-nothing-" + filepath.Base(w.Dir)
	t.Cleanup(func() {
		for _, pid := range processes(mark) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	line := fmt.Sprintf("setsid sh -c 'sleep 1000; : %s' & setsid sh -c 'sleep 1000; : %s' </dev/null >/dev/null 2>&1 & echo ready; ", mark, mark)
	c := w.start("sh", "-c", line+"sleep 1000")
	c.until("ready")
	w.Until("its children run", func() bool { return len(processes("sleep 1000; : "+mark)) >= 2 })
	if now := w.hostNetwork(); now != before {
		t.Errorf("the host's network was\n%s\nand is\n%s", before, now)
	}
	pids := processes(mark)
	_ = c.cmd.Process.Signal(syscall.SIGKILL)
	_ = c.cmd.Wait()
	w.Until("everything is gone", func() bool { return len(processes(mark)) == 0 })
	for _, pid := range pids {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/ns/net", pid)); err == nil {
			t.Errorf("process %d is there", pid)
		}
	}
	if r := w.run("--", "sh", "-c", line+"exit 5"); r.status != 5 {
		t.Errorf("exit %d\n%s", r.status, r.errout)
	}
	if left := processes(mark); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	if now := w.hostNetwork(); now != before {
		t.Errorf("the host's network was\n%s\nand is\n%s", before, now)
	}
	if entries, err := os.ReadDir("/run/boxgate-run"); err != nil || len(entries) > 0 {
		t.Errorf("its state is left: %v %v", entries, err)
	}
}

// hostNetwork describes links, routes and rules of the host of the world.
func (w *world) hostNetwork() string {
	w.T.Helper()
	var all strings.Builder
	for _, line := range []string{"ip -o link", "ip -4 route show table all", "ip -6 route show table all", "ip rule", "ip -6 rule", "nft list ruleset", "ip netns", "sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding"} {
		out, err := w.Net.Gateway().Run(w.T.Context(), "sh", "-c", line)
		if err != nil {
			w.T.Fatalf("%s: %v: %s", line, err, out)
		}
		for l := range strings.Lines(out) {
			if !strings.Contains(l, "fe80:") { // the kernel adds these at any time
				all.WriteString(l)
			}
		}
	}
	return all.String()
}

// TestRunsBesideEachOther: concurrent runs have their own policies, also next to a running gateway.
func TestRunsBesideEachOther(t *testing.T) {
	t.Parallel()
	w := &world{harness.Shared(t)}
	one := w.startUnder([]string{"--policy", `{"mode":"custom","allowed_domains":["www.example.com"]}`},
		"sh", "-c", "echo ready; read x; curl -sS https://www.example.com/ >/dev/null && echo reached; curl -fsS https://api.example.com/ || echo refused")
	one.until("ready")
	two := w.startUnder([]string{"--policy", `{"mode":"custom","allowed_domains":["api.example.com"]}`},
		"sh", "-c", "curl -sS https://api.example.com/ >/dev/null && echo reached; curl -fsS https://www.example.com/ || echo refused")
	for _, c := range []*running{one, two} {
		if status := c.wait(); status != 0 {
			t.Errorf("exit %d", status)
		}
		contains(t, "the output", c.String(), "reached\n", "refused\n")
	}
	box := w.Create(map[string]any{"network_policy": harness.Custom("www.example.com")})
	w.MustSh(box, "curl -sS https://www.example.com/ >/dev/null")
}

// TestRunLearns: the policy written by --learn allows exactly the connections used.
func TestRunLearns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	address := w.V4("plain.example.com").String()
	file := filepath.Join(w.home(), "policy.json")
	line := "curl -sS https://www.example.com/ >/dev/null && curl -sS http://plain.example.com/ >/dev/null && curl -sS http://" + address + ":80/ >/dev/null"
	r := w.must([]string{"--learn=" + file}, line+" && curl -sSm 20 http://10.0.0.5/ ; true")
	contains(t, "what was said", r.errout, "protected_range")
	spec, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	contains(t, "the policy", string(spec), `"www.example.com:443"`, `"plain.example.com:80"`)
	info, err := os.Stat(file)
	if err != nil || strconv.Itoa(int(info.Sys().(*syscall.Stat_t).Uid)) != user {
		t.Errorf("the file is not the user's: %v %v", info, err)
	}
	w.must([]string{"--policy", "@" + file}, line)
	if r := w.run("--policy", "@"+file, "--", "curl", "-fsS", "https://api.example.com/"); r.status != 22 {
		t.Errorf("another host: exit %d\n%s", r.status, r.errout)
	}
	r = w.must([]string{"--learn"}, "curl -sS https://www.example.com/ >/dev/null")
	contains(t, "what was said", r.errout, `{"mode":"custom","allowed_domains":["www.example.com:443"]`)
}

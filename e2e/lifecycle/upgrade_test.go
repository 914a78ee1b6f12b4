package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
)

// upgrading is a gateway with its own copy of the program.
type upgrading struct {
	*harness.World
	program string
	pid     int // PID of the serving process, if it is not the first
}

// newUpgrading creates a gateway that is not started yet.
func newUpgrading(t *testing.T, change func(*config.Config)) *upgrading {
	t.Helper()
	u := &upgrading{World: harness.NewStopped(t, lab.Options{Change: change})}
	u.Env = []string{harness.FaultsFile + "=" + u.FaultsPath()}
	u.program = filepath.Join(u.Dir, "gateway")
	u.install(u.Self)
	u.Self = u.program
	t.Cleanup(u.terminate)
	return u
}

// install replaces the gateway's program.
func (u *upgrading) install(from string) {
	u.T.Helper()
	// Copied by another process: a child started at the same time could inherit the file open for writing, and the
	// program could not be executed.
	copied, err := exec.CommandContext(u.T.Context(), "cp", from, u.program+".new").CombinedOutput()
	if err = errors.Join(err, os.Chmod(u.program+".new", 0o700), os.Rename(u.program+".new", u.program)); err != nil {
		u.T.Fatalf("%v: %s", err, copied)
	}
}

// terminate stops the process that serves, and waits for it.
func (u *upgrading) terminate() { u.endBy(unix.SIGTERM) }

// endBy ends the serving process with a signal, and waits for it.
func (u *upgrading) endBy(signal unix.Signal) {
	if u.pid == 0 {
		return
	}
	fd, err := unix.PidfdOpen(u.pid, 0)
	if err != nil {
		return // it has ended
	}
	defer unix.Close(fd)
	_ = unix.PidfdSendSignal(fd, signal, nil, 0)
	u.Until("the gateway ends", func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		return err == nil && n > 0
	})
}

// Kill kills the process that serves, and the first one, which may still drain, and waits for them.
func (u *upgrading) Kill() {
	u.T.Helper()
	u.endBy(unix.SIGKILL)
	u.pid = 0
	u.World.Kill()
}

// Reboot is [harness.World.Reboot] after [upgrading.Kill].
func (u *upgrading) Reboot() {
	u.T.Helper()
	u.Kill()
	u.World.Reboot()
}

// replaced is the answer to `gateway upgrade` and `gateway reload`.
type replaced struct {
	Replaced bool
	PID      int
	Error    string
	Changes  []config.Difference
	Roots    struct {
		Trusting int
		Failed   []struct{ ID string }
	}
}

// replace runs `gateway upgrade` or `gateway reload` in the gateway's namespace.
func (u *upgrading) replace(ctx context.Context, word string) replaced {
	u.T.Helper()
	cmd := u.Command(ctx, word, "--json")
	cmd.Path, cmd.Args[0] = harness.Gateway(), harness.Gateway()
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := u.Net.Gateway().Start(cmd); err != nil {
		u.T.Fatal(err)
	}
	_ = cmd.Wait()
	var r replaced
	if err := json.Unmarshal([]byte(out.String()+errs.String()), &r); err != nil {
		u.T.Fatalf("%v: %s%s", err, out.String(), errs.String())
	}
	if r.Replaced {
		u.pid = r.PID
	}
	return r
}

// mustReplace replaces the process.
func (u *upgrading) mustReplace(word string) {
	u.T.Helper()
	if r := u.replace(u.T.Context(), word); !r.Replaced {
		u.T.Fatalf("%s: %+v", word, r)
	}
}

// steady repeats actions, with a pause in the gate so that they do not take all of the machine, and records their failures.
type steady struct {
	stop     chan struct{}
	all      sync.WaitGroup
	done     []*atomic.Int64
	mu       sync.Mutex
	failures []string
}

func (s *steady) run(what string, f func() error) {
	n := new(atomic.Int64)
	s.done = append(s.done, n)
	s.all.Go(func() {
		for {
			select {
			case <-s.stop:
				return
			case <-time.After(nightly.Size(50*time.Millisecond, 0)):
			}
			if err := f(); err != nil {
				s.mu.Lock()
				s.failures = append(s.failures, fmt.Sprintf("%s, try %d: %v", what, n.Load(), err))
				s.mu.Unlock()
			}
			n.Add(1)
		}
	})
}

// counts returns the number of repetitions of each action.
func (s *steady) counts() (list []int64) {
	for _, n := range s.done {
		list = append(list, n.Load())
	}
	return list
}

// progressed reports whether each was done more often than before.
func (s *steady) progressed(before []int64) bool {
	for i, n := range s.counts() {
		if n < before[i]+2 {
			return false
		}
	}
	return true
}

// finish ends all, and fails the test for each failure.
func (s *steady) finish(t *testing.T) {
	t.Helper()
	close(s.stop)
	s.all.Wait()
	for _, f := range s.failures {
		t.Error(f)
	}
}

// box runs a shell command in a box that must succeed.
func (s *steady) box(g guest, what, script string) {
	s.run(what, func() error {
		if out, code := g.Sh(script); code != 0 {
			return fmt.Errorf("exit %d: %s", code, out)
		}
		return nil
	})
}

// flood makes a box send DNS queries, connections and requests continuously.
func flood(g guest) *steady {
	s := &steady{stop: make(chan struct{})}
	s.box(g, "DNS over UDP", "getent ahosts api.example.com")
	s.box(g, "DNS over TCP", "RES_OPTIONS=use-vc getent ahosts api.example.com")
	s.box(g, "DNS of another server", `bash -c 'exec 3<>/dev/udp/8.8.8.8/53
		printf "\0\1\1\0\0\1\0\0\0\0\0\0\3api\7example\3com\0\0\1\0\1" >&3
		test $(timeout 60 head -c 12 <&3 | wc -c) = 12'`)
	s.box(g, "a spliced connection", "curl -sSk --max-time 60 -o /dev/null https://www.example.com/")
	s.box(g, "an intercepted connection", "curl -sSk --max-time 60 -o /dev/null https://api.example.com/")
	return s
}

// stream opens an endless response in a box. size returns the number of bytes received so far, and ended gets curl's
// exit code.
func (u *upgrading) stream(g guest, url string) (size func() int64, ended chan int) {
	path, ended := filepath.Join(u.T.TempDir(), "stream"), make(chan int, 1)
	go func() {
		_, code := g.Sh("curl -sSkN -o " + path + " " + url)
		ended <- code
	}()
	size = func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	u.Until("the stream begins", func() bool { return size() > 0 })
	return size, ended
}

// goesOn fails the test unless a stream delivers more data.
func (u *upgrading) goesOn(what string, size func() int64) {
	u.T.Helper()
	had := size()
	u.Until(what+" goes on", func() bool { return size() > had })
}

// setPolicy sets a policy of allowed domains.
func (u *upgrading) setPolicy(g guest, domains ...string) {
	u.T.Helper()
	body := map[string]any{"mode": "custom", "allowed_domains": domains}
	if err := u.Client.Do(u.T.Context(), http.MethodPut, api.BoxPath(g.id, "config/network-policy"), body, nil); err != nil {
		u.T.Fatal(err)
	}
}

// guest attaches a box that may reach both hosts, one of them intercepted.
func (u *upgrading) guest() guest {
	u.T.Helper()
	u.StartIfStopped()
	g := attachGuests(u.T, u.World, 1)[0]
	u.setPolicy(g, "api.example.com", "www.example.com")
	headers := map[string]any{"api.example.com": map[string]string{"X-Key": harness.TestSecret}}
	if err := u.Client.Do(u.T.Context(), http.MethodPut, api.BoxPath(g.id, "config/attach-headers"), map[string]any{"attach_headers": headers}, nil); err != nil {
		u.T.Fatal(err)
	}
	return g
}

// While the gateway is replaced over and over, no query, connection or request fails, and open connections continue. A
// new policy cuts denied connections in every process, and no others.
func TestUpgradesLoseNothing(t *testing.T) {
	t.Parallel()
	u := newUpgrading(t, nil)
	g := u.guest()
	s := flood(g)
	s.run("the admin API", func() error { return u.Client.Get(t.Context(), api.BoxPath(g.id), nil) })
	spliced, splicedEnds := u.stream(g, "https://www.example.com/sse")
	intercepted, interceptedEnds := u.stream(g, "https://api.example.com/sse")
	for range 3 {
		u.mustReplace("upgrade")
		before := s.counts()
		u.Until("traffic goes on", func() bool { return s.progressed(before) })
		u.goesOn("the spliced stream", spliced)
		u.goesOn("the intercepted stream", intercepted)
	}
	s.finish(t)
	u.setPolicy(g, "api.example.com")
	u.Until("the stream that is denied now is cut", func() bool { return len(splicedEnds) == 1 })
	u.goesOn("the stream that is allowed", intercepted)
	headers := map[string]any{"attach_headers": map[string]any{}}
	if err := u.Client.Do(t.Context(), http.MethodPut, api.BoxPath(g.id, "config/attach-headers"), headers, nil); err != nil {
		t.Error(err)
	}
	u.Until("the stream of a rule that is gone is cut", func() bool { return len(interceptedEnds) == 1 })
}

// A program that does not start, or a configuration with a mistake, changes nothing and is reported.
func TestABadUpgradeChangesNothing(t *testing.T) {
	t.Parallel()
	u := newUpgrading(t, nil)
	g := u.guest()
	s := flood(g)
	size, _ := u.stream(g, "https://www.example.com/sse")
	good := u.program + ".good"
	if err := os.Link(u.program, good); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	u.install(script)
	if r := u.replace(t.Context(), "upgrade"); r.Replaced || !strings.Contains(r.Error, "does not start, and this one goes on") {
		t.Errorf("%+v", r)
	}
	u.install(good)
	before, err := os.ReadFile(u.Config)
	if err != nil {
		t.Fatal(err)
	}
	for mistake, says := range map[string]string{
		"dns: {upstreamz: []}\n": "did you mean", "network: {pool_v4: 10.201.0.0/16}\n": "network.pool_v4 cannot change", "drain: -1s\n": "drain: ",
	} {
		text := string(before)
		key, _, _ := strings.Cut(mistake, ":")
		if i := strings.Index(text, "\n"+key+":"); i >= 0 { // replaces the present section
			text = text[:i+1] + mistake + skipSection(text[i+1:])
		} else {
			text += mistake
		}
		if err := os.WriteFile(u.Config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := u.replace(t.Context(), "reload"); r.Replaced || !strings.Contains(r.Error, says) {
			t.Errorf("%q: %+v, want %q", mistake, r, says)
		}
	}
	if err := os.WriteFile(u.Config, before, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := u.replace(t.Context(), "reload"); r.Replaced || r.Error != "" || len(r.Changes) != 0 {
		t.Errorf("a configuration that has not changed: %+v", r)
	}
	u.goesOn("the stream", size)
	counts := s.counts()
	u.Until("traffic goes on", func() bool { return s.progressed(counts) })
	s.finish(t)
	u.setPolicy(g, "api.example.com")
}

// skipSection returns a YAML document without its first section.
func skipSection(text string) string {
	_, rest, _ := strings.Cut(text, "\n")
	for strings.HasPrefix(rest, " ") {
		_, rest, _ = strings.Cut(rest, "\n")
	}
	return rest
}

// A reload applies and lists the changes. Open connections continue unless the change affects decisions.
func TestAReloadTakesEffect(t *testing.T) {
	t.Parallel()
	u := newUpgrading(t, nil)
	g := u.guest()
	size, ended := u.stream(g, "https://www.example.com/sse")
	change := func(f func(*config.Config)) replaced {
		t.Helper()
		u.reconfigure(f)
		r := u.replace(t.Context(), "reload")
		if !r.Replaced {
			t.Fatalf("%+v", r)
		}
		return r
	}
	r := change(func(c *config.Config) { c.Metrics.Listen = "127.0.0.1:9601" })
	if want := (config.Difference{Key: "metrics.listen", Old: "127.0.0.1:9600", New: "127.0.0.1:9601"}); !slices.Contains(r.Changes, want) || len(r.Changes) != 1 {
		t.Errorf("%+v", r.Changes)
	}
	if out, err := u.Net.Gateway().Run(t.Context(), "curl", "-sS", "http://127.0.0.1:9601/metrics"); err != nil || !strings.Contains(out, "boxgate_build_info") {
		t.Errorf("the new address: %v %s", err, out)
	}
	if out, err := u.Net.Gateway().Run(t.Context(), "curl", "-sS", "http://127.0.0.1:9600/metrics"); err == nil {
		t.Errorf("the old address: %s", out)
	}
	u.goesOn("the stream", size)
	change(func(c *config.Config) { c.Network.ProtectedExempt = append(c.Network.ProtectedExempt, "198.18.0.0/24") })
	u.Until("what was judged by other rules is cut", func() bool { return len(ended) == 1 })
	if !g.reaches() {
		t.Error("the box does not reach what it may")
	}
}

// reconfigure changes the configuration file.
func (u *upgrading) reconfigure(change func(*config.Config)) {
	u.T.Helper()
	cfg, err := config.Load(u.Config, nil)
	if err != nil {
		u.T.Fatal(err)
	}
	change(&cfg)
	data, err := yaml.Marshal(cfg)
	if err == nil {
		err = os.WriteFile(u.Config, data, 0o600)
	}
	if err != nil {
		u.T.Fatal(err)
	}
}

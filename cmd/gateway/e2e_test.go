package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
	"boxgate/launcher"
	"boxgate/policy"
)

// world is a lab in which the gateway runs, for one test.
type world struct {
	*lab.Lab
	t       *testing.T
	foreign *sync.Map // box → *foreignBox, of those that are attached
}

// newWorld starts a gateway with an internet of its own; both end with the test.
func newWorld(t *testing.T, change func(*config.Config)) *world {
	t.Helper()
	w := stoppedWorld(t, lab.Options{Change: change})
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// stoppedWorld is newWorld without the gateway started.
func stoppedWorld(t *testing.T, o lab.Options) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces and containers: run it as root (sudo make test)")
	}
	o.ImageDir = imageDirOfTests()
	l, err := lab.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the gateway's log ended with:\n%s", last(l.LogText(), 6000))
		}
		if err := l.Close(); err != nil {
			t.Errorf("closing the lab: %v", err)
		}
	})
	return &world{Lab: l, t: t, foreign: new(sync.Map)}
}

func last(s string, n int) string {
	if len(s) > n {
		return s[len(s)-n:]
	}
	return s
}

// create makes a box and returns its ID.
func (w *world) create(body map[string]any) string {
	w.t.Helper()
	if os.Getenv(boxesAreAttached) != "" {
		return w.attach(body)
	}
	var made struct{ ID string }
	if err := w.Client.Do(w.t.Context(), "POST", "/v2/box", body, &made); err != nil {
		w.t.Fatalf("creating a box: %v", err)
	}
	return made.ID
}

// custom is a custom policy of these domains.
func custom(domains ...string) map[string]any {
	return map[string]any{"mode": "custom", "allowed_domains": domains}
}

// sh runs a shell line in a box and returns everything it printed and its exit code.
func (w *world) sh(box, line string) (string, int) {
	w.t.Helper()
	if f, ok := w.foreign.Load(box); ok {
		return f.(*foreignBox).sh(line)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	code, err := w.Client.Exec(ctx, box, api.ExecRequest{Command: []string{"sh", "-c", line}}, &out, &out)
	if err != nil {
		w.t.Fatalf("exec %q: %v (%s)", line, err, out.String())
	}
	return out.String(), code
}

// mustSh is sh for a line that must succeed.
func (w *world) mustSh(box, line string) string {
	w.t.Helper()
	out, code := w.sh(box, line)
	if code != 0 {
		w.t.Fatalf("%q exited with %d: %s", line, code, out)
	}
	return out
}

// setPolicy replaces a box's policy.
func (w *world) setPolicy(box string, policy map[string]any) {
	w.t.Helper()
	if err := w.Client.Do(w.t.Context(), "PUT", boxPath(box, "config/network-policy"), policy, nil); err != nil {
		w.t.Fatalf("setting the policy: %v", err)
	}
}

// event waits for a decision about a box that match selects.
func (w *world) event(box string, match func(audit.Event) bool) audit.Event {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	for {
		events := w.events(box)
		for _, e := range events {
			if match(e) {
				return e
			}
		}
		select {
		case <-ctx.Done():
			for _, e := range events {
				w.t.Logf("decision: %s", audit.Line(e))
			}
			w.t.Fatal("the decision was not logged")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// events are the decisions about a box so far.
func (w *world) events(box string) []audit.Event {
	w.t.Helper()
	var events []audit.Event
	err := w.Client.Lines(w.t.Context(), boxPath(box, "egress"), func(line []byte) error {
		var e audit.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		events = append(events, e)
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return events
}

// nothingReached fails the test if a host of the internet received anything.
func (w *world) nothingReached(host string) {
	w.t.Helper()
	if seen := w.Net.Received(host, testnet.Any); len(seen) != 0 {
		w.t.Errorf("%s received %d things, the first: %+v", host, len(seen), seen[0])
	}
}

// gatewayCommand runs `gateway args...` against the world's gateway.
func (w *world) gatewayCommand(args ...string) (string, int) {
	w.t.Helper()
	cmd := w.Command(w.t.Context(), args...)
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

// background starts a line in a box; the returned function waits for its end and returns what it printed and its code.
func (w *world) background(box, line string, out io.Writer) (wait func() (int, error)) {
	type ended struct {
		code int
		err  error
	}
	done := make(chan ended, 1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	w.t.Cleanup(cancel)
	go func() {
		code, err := w.Client.Exec(ctx, box, api.ExecRequest{Command: []string{"sh", "-c", line}}, out, out)
		done <- ended{code, err}
	}()
	return func() (int, error) {
		e := <-done
		return e.code, e.err
	}
}

// contains fails the test unless text has every part.
func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is not in:\n%s", p, text)
		}
	}
}

// v4 returns the IPv4 address of a host of the internet.
func (w *world) v4(host string) netip.Addr { return w.addr(host, netip.Addr.Is4) }

// v6 returns the IPv6 address of a host of the internet.
func (w *world) v6(host string) netip.Addr { return w.addr(host, netip.Addr.Is6) }

func (w *world) addr(host string, family func(netip.Addr) bool) netip.Addr {
	w.t.Helper()
	for _, a := range w.Net.Addrs(host) {
		if family(a) {
			return a
		}
	}
	w.t.Fatalf("%s has no such address", host)
	return netip.Addr{}
}

// execDetached prepares a process in a group of its own, as one that a user interrupts from elsewhere.
func execDetached(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// initOf is the first process of a box as the host sees it.
func (w *world) initOf(box string) int {
	w.t.Helper()
	l, err := launcher.New(launcher.Config{StateDir: filepath.Join(w.Dir, "state"), RunDir: lab.RunDir(w.Dir)})
	if err != nil {
		w.t.Fatal(err)
	}
	status, err := l.State(w.t.Context(), policy.BoxID(box))
	if err != nil || status.Pid == 0 {
		w.t.Fatalf("box %s: %+v %v", box, status, err)
	}
	return status.Pid
}

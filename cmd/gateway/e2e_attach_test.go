package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/internal/lab"
	"boxgate/policy"
)

// foreignBox is a sandbox that the gateway did not make: a process in namespaces of its own, which end with the test.
type foreignBox struct {
	t   *testing.T
	pid int
	env []string // of what runs in it
}

// newForeignBox starts one. Its resolver is one that nobody runs: the gateway answers in its place.
func newForeignBox(t *testing.T) *foreignBox {
	t.Helper()
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver 192.0.2.99\noptions timeout:2\n"), 0o600); err != nil {
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
	t.Cleanup(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the foreign box: %v", err)
		}
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the foreign box did not start: %q %v", line, err)
	}
	return &foreignBox{t: t, pid: cmd.Process.Pid}
}

// sh runs a shell line in the sandbox.
func (f *foreignBox) sh(line string) (string, int) {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), "nsenter", "-t", strconv.Itoa(f.pid), "-n", "-m", "sh", "-c", line)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &out, append(os.Environ(), f.env...)
	_ = cmd.Run()
	return out.String(), cmd.ProcessState.ExitCode()
}

// path names its network namespace.
func (f *foreignBox) path() string { return "/proc/" + strconv.Itoa(f.pid) + "/ns/net" }

// A network namespace that somebody else made has no way out but the gateway from the moment it is attached, keeps its
// policy over a crash of the gateway, and is as it was when it is detached.
func TestAttachedBoxIsUnderTheGateway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	f := newForeignBox(t)
	out, code := w.gatewayCommand("box", "attach", "--json", "--pid", strconv.Itoa(f.pid), "--name", "guest",
		"--policy", `{"mode":"custom","allowed_domains":["*.example.com"]}`, "--headers", `{"api.example.com":{"X-Key":"`+canary+`"}}`)
	var box struct {
		ID, IPv4 string
		Attached api.Attached
	}
	if err := json.Unmarshal([]byte(out), &box); code != 0 || err != nil || box.Attached.Kind != api.AttachPID {
		t.Fatalf("gateway box attach: %d %s", code, out)
	}
	bundle := filepath.Join(t.TempDir(), "bundle.pem")
	text, code := w.gatewayCommand("ca", "--box", "guest", "--bundle")
	if code != 0 || strings.Count(text, "BEGIN CERTIFICATE") < 50 {
		t.Fatalf("gateway ca --bundle: %d %s", code, last(text, 500))
	}
	if err := os.WriteFile(bundle, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	works := func(when string) {
		t.Helper()
		for _, family := range []string{"-4", "-6"} {
			out, code := f.sh("curl -sS --max-time 20 " + family + " --cacert " + bundle + " https://api.example.com/echo")
			if code != 0 || !strings.Contains(out, canary) {
				t.Errorf("%s: curl %s: %d %s", when, family, code, out)
			}
			if out, code := f.sh("curl -sS --max-time 20 " + family + " https://evil.example.net/"); code != 35 {
				t.Errorf("%s: a host that is not allowed: %d %s", when, code, out)
			}
		}
		if out, code := f.sh("curl -sS --max-time 20 --resolve evil.example.net:443:" + w.v4("evil.example.net").String() + " https://evil.example.net/"); code != 35 {
			t.Errorf("%s: its address: %d %s", when, code, out)
		}
	}
	works("attached")
	w.event(box.ID, func(e audit.Event) bool { return e.Verdict == policy.Deny && e.Name == "evil.example.net" })
	if _, err := w.Client.Exec(t.Context(), box.ID, api.ExecRequest{Command: []string{"true"}}, os.Stderr, os.Stderr); err == nil {
		t.Error("a command was run in a box that somebody else made")
	}
	if out, code := w.gatewayCommand("box", "attach", "--pid", strconv.Itoa(f.pid)); code != 1 || !strings.Contains(out, "namespace of box") {
		t.Errorf("attached a second time: %d %s", code, out)
	}

	if out, code := w.gatewayCommand("box", "selftest", "guest"); code != 0 {
		t.Errorf("gateway box selftest: %d %s", code, out)
	}

	w.Kill()
	if out, code := f.sh("curl -sS --max-time 5 -k https://evil.example.net/"); code == 0 {
		t.Errorf("without a gateway: %s", out)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	works("after a crash of the gateway")
	w.setPolicy(box.ID, map[string]any{"mode": "deny-all"})
	if out, code := f.sh("curl -sS --max-time 20 https://api.example.com/echo"); code != 35 {
		t.Errorf("after its policy was tightened: %d %s", code, out)
	}

	if out, code := w.gatewayCommand("box", "detach", "guest"); code != 0 {
		t.Fatalf("gateway box detach: %s", out)
	}
	if out, _ := f.sh("ip -o link; ip route; ip -6 route"); strings.Contains(out, "eth0") || strings.Contains(out, "default via") {
		t.Errorf("left in the namespace: %s", out)
	}
	if rules, err := w.Net.Gateway().Run(t.Context(), "nft", "list", "ruleset"); err != nil || strings.Contains(rules, box.ID) {
		t.Errorf("left in the rules (%v): %s", err, rules)
	}
	if pins, err := os.ReadDir(filepath.Join(lab.RunDir(w.Dir), "attached")); err != nil || len(pins) != 0 {
		t.Errorf("left pinned: %v %v", pins, err)
	}
	if out, code := w.gatewayCommand("box", "get", box.ID); code != 1 {
		t.Errorf("a detached box is still known: %s", out)
	}
	if out, code := w.gatewayCommand("box", "attach", "--netns", f.path()); code != 0 {
		t.Errorf("attached again by its path: %s", out)
	}
}

// What is no network namespace of somebody else's, or has another way out than the gateway, is refused and left alone.
func TestAttachRefusesWhatItCannotGuard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	f := newForeignBox(t)
	if out, code := f.sh("ip link add other0 type veth peer name other1 && ip link set other0 up"); code != 0 {
		t.Fatal(out)
	}
	own := w.create(map[string]any{})
	for name, c := range map[string]struct{ flag, value, says string }{
		"another interface":       {"--pid", strconv.Itoa(f.pid), "other"},
		"the gateway's namespace": {"--pid", strconv.Itoa(w.Process.Process.Pid), "of the gateway itself"},
		"a launched box":          {"--pid", strconv.Itoa(w.initOf(own)), "namespace of box"},
		"another namespace":       {"--netns", "/proc/" + strconv.Itoa(f.pid) + "/ns/mnt", "not a network namespace"},
		"a file":                  {"--netns", "/etc/hostname", "not a network namespace"},
		"nothing":                 {"--netns", "/run/netns/no-such-namespace", "no such file"},
		"no such process":         {"--pid", "4194304", "no such file"},
		"a relative path":         {"--netns", "run/netns/x", "absolute"},
		"a container's odd name":  {"--container", "../../version", "not the ID"},
	} {
		if out, code := w.gatewayCommand("box", "attach", c.flag, c.value); code != 1 || !strings.Contains(out, c.says) {
			t.Errorf("%s: %d %s", name, code, out)
		}
	}
	out, _ := w.gatewayCommand("box", "list", "--json")
	if strings.Count(out, `"id"`) != 1 || !strings.Contains(out, own) {
		t.Errorf("boxes after refusals: %s", out)
	}
	if out, code := w.gatewayCommand("box", "detach", own); code != 1 || !strings.Contains(out, "launched here") {
		t.Errorf("a launched box was detached: %d %s", code, out)
	}
	w.mustSh(own, "true")
	if out, _ := f.sh("ip -o link"); strings.Contains(out, "eth0") {
		t.Errorf("a refused namespace was changed: %s", out)
	}
}

// A container is found by its name: by what Docker says is its first process.
func TestAttachAsksDocker(t *testing.T) {
	t.Parallel()
	f := newForeignBox(t)
	socket := filepath.Join(t.TempDir(), "docker.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	docker := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/containers/guest/json":
			fmt.Fprintf(w, `{"Id":"3f2a9c","State":{"Status":"running","Pid":%d}}`, f.pid)
		case "/containers/restarting/json": // its first process ends while it is attached, and its ID is another sandbox's
			pid := f.pid
			if asked.Add(1) > 1 {
				pid = os.Getpid()
			}
			fmt.Fprintf(w, `{"Id":"3f2a9e","State":{"Status":"running","Pid":%d}}`, pid)
		case "/containers/stopped/json":
			fmt.Fprint(w, `{"Id":"3f2a9d","State":{"Status":"exited","Pid":0}}`)
		default:
			http.Error(w, `{"message":"No such container"}`, http.StatusNotFound)
		}
	})}
	go func() { _ = docker.Serve(ln) }()
	t.Cleanup(func() { docker.Close() })
	w := stoppedWorld(t, lab.Options{})
	w.Env = append(w.Env, "DOCKER_HOST=unix://"+socket)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, says := range map[string]string{"stopped": "does not run", "restarting": "restarted", "other": "no container"} {
		if out, code := w.gatewayCommand("box", "attach", "--container", name); code != 1 || !strings.Contains(out, says) {
			t.Errorf("%s: %d %s", name, code, out)
		}
	}
	if out, code := w.gatewayCommand("box", "attach", "--container", "guest", "--policy", "allow-all"); code != 0 {
		t.Fatalf("%d %s", code, out)
	}
	if out, code := f.sh("curl -sS --max-time 20 http://plain.example.com/seen"); code != 0 || !strings.Contains(out, "GET /seen") {
		t.Errorf("from the container: %d %s", code, out)
	}
	docker.Close()
	if out, code := w.gatewayCommand("box", "attach", "--container", "guest"); code != 1 || !strings.Contains(out, "no answer from Docker") {
		t.Errorf("without Docker: %d %s", code, out)
	}
}

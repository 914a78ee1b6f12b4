package lifecycle

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/policy"
)

// From the moment it is attached, a foreign network namespace has no way out except the gateway. It keeps its policy
// over a crash of the gateway, and detaching restores its previous state.
func TestAttachedBoxIsUnderTheGateway(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	f := harness.NewForeignBox(t)
	out, code := w.GatewayCommand("box", "attach", "--json", "--pid", strconv.Itoa(f.PID), "--name", "guest",
		"--policy", `{"mode":"custom","allowed_domains":["*.example.com"]}`, "--headers", `{"api.example.com":{"X-Key":"`+harness.Canary+`"}}`)
	var box struct {
		ID, IPv4 string
		Attached api.Attached
	}
	if err := json.Unmarshal([]byte(out), &box); code != 0 || err != nil || box.Attached.Kind != api.AttachPID {
		t.Fatalf("gateway box attach: %d %s", code, out)
	}
	bundle := filepath.Join(t.TempDir(), "bundle.pem")
	text, code := w.GatewayCommand("ca", "--box", "guest", "--bundle")
	if code != 0 || strings.Count(text, "BEGIN CERTIFICATE") < 50 {
		t.Fatalf("gateway ca --bundle: %d %s", code, harness.Tail(text, 500))
	}
	if err := os.WriteFile(bundle, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	works := func(when string) {
		t.Helper()
		for _, family := range []string{"-4", "-6"} {
			out, code := f.Sh("curl -sS --max-time 60 " + family + " --cacert " + bundle + " https://api.example.com/echo")
			if code != 0 || !strings.Contains(out, harness.Canary) {
				t.Errorf("%s: curl %s: %d %s", when, family, code, out)
			}
			if out, code := f.Sh("curl -sS --max-time 60 " + family + " https://evil.example.net/"); code != 35 {
				t.Errorf("%s: a host that is not allowed: %d %s", when, code, out)
			}
		}
		if out, code := f.Sh("curl -sS --max-time 60 --resolve evil.example.net:443:" + w.V4("evil.example.net").String() + " https://evil.example.net/"); code != 35 {
			t.Errorf("%s: its address: %d %s", when, code, out)
		}
	}
	works("attached")
	w.Event(box.ID, func(e audit.Event) bool { return e.Verdict == policy.Deny && e.Name == "evil.example.net" })
	if _, err := w.Client.Exec(t.Context(), box.ID, api.ExecRequest{Command: []string{"true"}}, os.Stderr, os.Stderr); err == nil {
		t.Error("a command was run in a box that somebody else made")
	}
	if out, code := w.GatewayCommand("box", "attach", "--pid", strconv.Itoa(f.PID)); code != 1 || !strings.Contains(out, "namespace of box") {
		t.Errorf("attached a second time: %d %s", code, out)
	}

	if out, code := w.GatewayCommand("box", "selftest", "guest"); code != 0 {
		t.Errorf("gateway box selftest: %d %s", code, out)
	}

	w.Kill()
	if out, code := f.Sh("curl -sS --max-time 5 -k https://evil.example.net/"); code == 0 {
		t.Errorf("without a gateway: %s", out)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	works("after a crash of the gateway")
	w.SetPolicy(box.ID, map[string]any{"mode": "deny-all"})
	if out, code := f.Sh("curl -sS --max-time 60 https://api.example.com/echo"); code != 35 {
		t.Errorf("after its policy was tightened: %d %s", code, out)
	}

	if out, code := w.GatewayCommand("box", "detach", "guest"); code != 0 {
		t.Fatalf("gateway box detach: %s", out)
	}
	if out, _ := f.Sh("ip -o link; ip route; ip -6 route"); strings.Contains(out, "eth0") || strings.Contains(out, "default via") {
		t.Errorf("left in the namespace: %s", out)
	}
	if rules, err := w.Net.Gateway().Run(t.Context(), "nft", "list", "ruleset"); err != nil || strings.Contains(rules, box.ID) {
		t.Errorf("left in the rules (%v): %s", err, rules)
	}
	if pins, err := os.ReadDir(filepath.Join(lab.RunDir(w.Dir), "attached")); err != nil || len(pins) != 0 {
		t.Errorf("left pinned: %v %v", pins, err)
	}
	if out, code := w.GatewayCommand("box", "get", box.ID); code != 1 {
		t.Errorf("a detached box is still known: %s", out)
	}
	if out, code := w.GatewayCommand("box", "attach", "--netns", f.Path()); code != 0 {
		t.Errorf("attached again by its path: %s", out)
	}
}

// A path that is not a foreign network namespace, or a namespace with another way out than the gateway, is refused and
// left unchanged.
func TestAttachRefusesWhatItCannotGuard(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	f := harness.NewForeignBox(t)
	if out, code := f.Sh("ip link add other0 type veth peer name other1 && ip link set other0 up"); code != 0 {
		t.Fatal(out)
	}
	own := w.Create(map[string]any{})
	for name, c := range map[string]struct{ flag, value, says string }{
		"another interface":       {"--pid", strconv.Itoa(f.PID), "other"},
		"the gateway's namespace": {"--pid", strconv.Itoa(w.Process.Process.Pid), "of the gateway itself"},
		"a launched box":          {"--pid", strconv.Itoa(w.InitOf(own)), "namespace of box"},
		"another namespace":       {"--netns", "/proc/" + strconv.Itoa(f.PID) + "/ns/mnt", "not a network namespace"},
		"a file":                  {"--netns", "/etc/hostname", "not a network namespace"},
		"nothing":                 {"--netns", "/run/netns/no-such-namespace", "there is no file"},
		"no such process":         {"--pid", "4194304", "there is no process"},
		"a relative path":         {"--netns", "run/netns/x", "absolute"},
		"a container's odd name":  {"--container", "../../version", "not the ID"},
	} {
		if out, code := w.GatewayCommand("box", "attach", c.flag, c.value); code != 1 || !strings.Contains(out, c.says) {
			t.Errorf("%s: %d %s", name, code, out)
		}
	}
	out, _ := w.GatewayCommand("box", "list", "--json")
	if strings.Count(out, `"id"`) != 1 || !strings.Contains(out, own) {
		t.Errorf("boxes after refusals: %s", out)
	}
	if out, code := w.GatewayCommand("box", "detach", own); code != 1 || !strings.Contains(out, "launched here") {
		t.Errorf("a launched box was detached: %d %s", code, out)
	}
	w.MustSh(own, "true")
	if out, _ := f.Sh("ip -o link"); strings.Contains(out, "eth0") {
		t.Errorf("a refused namespace was changed: %s", out)
	}
}

// A container is found by name: the gateway asks Docker for its first process.
func TestAttachAsksDocker(t *testing.T) {
	t.Parallel()
	f := harness.NewForeignBox(t)
	socket := filepath.Join(t.TempDir(), "docker.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	started, early := time.Now().Format(time.RFC3339Nano), time.Now().Add(-time.Hour).Format(time.RFC3339Nano)
	var asked atomic.Int64
	docker := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/containers/guest/json", "/containers/3f2a9c/json":
			fmt.Fprintf(w, `{"Id":"3f2a9c","State":{"Status":"running","Pid":%d,"StartedAt":%q}}`, f.PID, started)
		case "/containers/late/json": // its first process has ended, another has its ID, and Docker has not noticed
			fmt.Fprintf(w, `{"Id":"3f2a9f","State":{"Status":"running","Pid":%d,"StartedAt":%q}}`, f.PID, early)
		case "/containers/restarting/json": // its first process ends during the attach, and another sandbox gets its ID
			pid := f.PID
			if asked.Add(1) > 1 {
				pid = os.Getpid()
			}
			fmt.Fprintf(w, `{"Id":"3f2a9e","State":{"Status":"running","Pid":%d,"StartedAt":%q}}`, pid, started)
		case "/containers/stopped/json":
			fmt.Fprint(w, `{"Id":"3f2a9d","State":{"Status":"exited","Pid":0}}`)
		default:
			http.Error(w, `{"message":"No such container"}`, http.StatusNotFound)
		}
	})}
	go func() { _ = docker.Serve(ln) }()
	t.Cleanup(func() { docker.Close() })
	w := harness.NewStopped(t, lab.Options{})
	w.Env = append(w.Env, "DOCKER_HOST=unix://"+socket)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, says := range map[string]string{"stopped": "is not running", "restarting": "restarted", "late": "not the one that the container began with", "other": "no such container"} {
		if out, code := w.GatewayCommand("box", "attach", "--container", name); code != 1 || !strings.Contains(out, says) {
			t.Errorf("%s: %d %s", name, code, out)
		}
	}
	if out, code := w.GatewayCommand("box", "attach", "--container", "guest", "--policy", "allow-all"); code != 0 {
		t.Fatalf("%d %s", code, out)
	}
	if out, code := f.Sh("curl -sS --max-time 60 http://plain.example.com/seen"); code != 0 || !strings.Contains(out, "GET /seen") {
		t.Errorf("from the container: %d %s", code, out)
	}
	docker.Close()
	if out, code := w.GatewayCommand("box", "attach", "--container", "guest"); code != 1 || !strings.Contains(out, "no answer from Docker") {
		t.Errorf("without Docker: %d %s", code, out)
	}
}

// An attached box whose resolver tries the names of its search list first, as in a pod, finds an allowed name, also
// after a restart of the gateway. Domains that the box adds to the list get no access.
func TestSearchListOfAnAttachedBox(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	f := harness.NewForeignBox(t, "search example.net svc.cluster.local cluster.local evil.example.net", "options ndots:5")
	policy := map[string]any{"mode": "custom", "allowed_domains": []string{"*.example.com"}}
	text, _ := json.Marshal(policy)
	out, code := w.GatewayCommand("box", "attach", "--json", "--pid", strconv.Itoa(f.PID), "--name", "pod", "--policy", string(text))
	var box struct{ ID string }
	if err := json.Unmarshal([]byte(out), &box); code != 0 || err != nil {
		t.Fatalf("gateway box attach: %d %s", code, out)
	}
	found := func(when string, want bool) {
		t.Helper()
		out, _ := f.Sh("getent ahostsv4 api.example.com")
		if got := strings.Contains(out, w.V4("api.example.com").String()); got != want {
			t.Errorf("%s: %s", when, out)
		}
		if out, code := f.Sh("curl -sS --max-time 60 https://evil.example.net/"); code != 6 && code != 35 {
			t.Errorf("%s: a host that is not allowed: %d %s", when, code, out)
		}
	}
	found("attached", true)
	w.Kill()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	found("after a restart of the gateway", true)
	policy["denied_names"] = "sink"
	w.SetPolicy(box.ID, policy)
	found("with the sink for all denied names", false)
}

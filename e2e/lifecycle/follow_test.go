package lifecycle

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// follower is a box that is attached to a container.
type follower struct {
	*harness.World
	docker    *harness.Docker
	container *harness.Container
	id        string
	bundle    string // CA bundle that it trusts, created once because the CA stays
	url       harness.PublicURL
}

// follow attaches a box to a new container.
func follow(t *testing.T) *follower {
	t.Helper()
	w, d := harness.NewDockerWorld(t)
	b := &follower{World: w, docker: d, container: d.Run("guest"), bundle: filepath.Join(t.TempDir(), "bundle.pem")}
	out, code := w.GatewayCommand("box", "attach", "--json", "--container", "guest", "--name", "agent",
		"--policy", `{"mode":"custom","allowed_domains":["api.example.com"]}`, "--headers", `{"api.example.com":{"X-Key":"`+harness.Canary+`"}}`)
	var made struct {
		ID       string
		Attached api.Attached
	}
	if err := json.Unmarshal([]byte(out), &made); code != 0 || err != nil || made.Attached.Container != b.container.ID {
		t.Fatalf("gateway box attach: %d %s", code, out)
	}
	b.id = made.ID
	ca, code := w.GatewayCommand("ca", "--box", "agent", "--bundle")
	if err := os.WriteFile(b.bundle, []byte(ca), 0o600); code != 0 || err != nil {
		t.Fatal(ca, err)
	}
	return b
}

// assertWorks fails the test unless the box has its network, secrets, rules and CA.
func (b *follower) assertWorks(when string) {
	b.T.Helper()
	f := b.container.Sandbox()
	b.UntilEvery(5*time.Millisecond, when+": the container has the box's network", func() bool {
		out, _ := f.Sh("ip -o link")
		status, _ := b.BoxStatus(b.id)
		return strings.Contains(out, "eth0") && status == "idle"
	})
	if out, code := f.Sh("curl -sS --max-time 60 --cacert " + b.bundle + " https://api.example.com/echo"); code != 0 || !strings.Contains(out, harness.Canary) {
		b.T.Errorf("%s: %d %s", when, code, out)
	}
	if out, code := f.Sh("curl -sS --max-time 60 -k https://evil.example.net/"); code != 35 {
		b.T.Errorf("%s: a host that is not allowed: %d %s", when, code, out)
	}
}

// isGone fails the test unless the box loses its sandbox and the gateway keeps no state of it.
func (b *follower) isGone(says string) {
	b.T.Helper()
	b.UntilStatus(b.id, "gone")
	b.Until("it says why", func() bool {
		_, problem := b.BoxStatus(b.id)
		return strings.Contains(problem, says)
	})
	if pins, err := os.ReadDir(filepath.Join(lab.RunDir(b.Dir), "attached")); err != nil || len(pins) != 0 {
		b.T.Errorf("still pinned: %v %v", pins, err)
	}
	links, err := b.Net.Gateway().Run(b.T.Context(), "ip", "-o", "link")
	if err != nil || strings.Contains(links, b.id) {
		b.T.Errorf("a link is left (%v): %s", err, links)
	}
}

// A restarted container keeps its box: with the same ID, policy, header rules, CA and public URLs. While it is stopped
// the box is gone, and can be changed.
func TestAttachedBoxFollowsItsContainer(t *testing.T) {
	t.Parallel()
	b := follow(t)
	if err := b.Client.Do(t.Context(), "POST", api.BoxPath(b.id, "preview"), map[string]any{"port": 8000}, &b.url); err != nil {
		t.Fatal(err)
	}
	b.assertWorks("attached")
	b.container.Stop()
	b.isGone("attached again when it starts")
	if out, code := b.GatewayCommand("box", "list"); code != 0 || !strings.Contains(out, "gone") {
		t.Errorf("gateway box list: %d %s", code, out)
	}
	if !strings.Contains(b.LogText(), `"status":"gone"`) {
		t.Error("the log does not say that the box is gone")
	}
	b.container.Start()
	b.assertWorks("after docker start")
	b.container.Stop()
	b.container.Start()
	b.assertWorks("after docker restart")
	b.container.Stop()
	b.isGone("")
	b.SetPolicy(b.id, map[string]any{"mode": "deny-all"})
	b.container.Start()
	b.UntilStatus(b.id, "idle")
	if out, code := b.container.Sandbox().Sh("curl -sS --max-time 60 -k https://api.example.com/echo"); code != 35 {
		t.Errorf("its policy was tightened while it was gone: %d %s", code, out)
	}
	var urls struct{ Previews []struct{ Port int } }
	if err := b.Client.Get(t.Context(), api.BoxPath(b.id, "preview"), &urls); err != nil || len(urls.Previews) != 1 {
		t.Errorf("its public URLs: %+v %v", urls, err)
	}
	if out, code := b.GatewayCommand("box", "detach", "agent"); code != 0 {
		t.Errorf("gateway box detach: %s", out)
	}
	b.NoInternalErrors()
}

// Changes during an outage of the gateway or Docker are detected afterwards.
func TestAttachedBoxFollowsThroughRestarts(t *testing.T) {
	t.Parallel()
	b := follow(t)
	b.assertWorks("attached")
	b.Kill()
	b.container.Stop()
	b.container.Start()
	b.StartIfStopped()
	b.assertWorks("restarted while the gateway was down")
	b.Kill()
	b.container.Stop()
	b.StartIfStopped()
	b.isGone("stopped")
	b.Kill()
	b.StartIfStopped()
	b.isGone("stopped")
	b.container.Start()
	b.assertWorks("stopped while the gateway was down")
	b.docker.Stop() // containers keep running, as with live-restore
	b.assertWorks("without Docker")
	b.container.Stop()
	b.isGone("Docker does not answer")
	b.container.Start()
	b.docker.Start()
	b.assertWorks("restarted while Docker was down")
	b.NoInternalErrors()
}

// Another container with the name of a removed one gets no access to its box, until the box is attached to it
// explicitly.
func TestAttackContainerThatTakesTheNameOfAnother(t *testing.T) {
	t.Parallel()
	b := follow(t)
	b.assertWorks("attached")
	b.container.Remove()
	b.isGone("removed")
	thief := b.docker.Run("guest")
	b.Kill()
	b.StartIfStopped()
	b.isGone("removed")
	if out, code := b.GatewayCommand("box", "reattach", "agent"); code != 1 || !strings.Contains(out, "no such container") {
		t.Errorf("gateway box reattach: %d %s", code, out)
	}
	if out, _ := thief.Sandbox().Sh("ip -o link"); strings.Contains(out, "eth0") {
		t.Errorf("another container of the same name got the box's network: %s", out)
	}
	if status, _ := b.BoxStatus(b.id); status != "gone" {
		t.Errorf("the box is %s", status)
	}
	b.container = thief
	if out, code := b.GatewayCommand("box", "reattach", "agent", "--container", "guest"); code != 0 {
		t.Fatalf("gateway box reattach: %d %s", code, out)
	}
	b.assertWorks("attached by hand")
	thief.Stop()
	b.isGone("")
	thief.Start("ip link add out0 type veth peer name out1 && ip link set out0 up")
	b.isGone("has the interface out")
	if out, _ := thief.Sandbox().Sh("ip -o link"); strings.Contains(out, "eth0") {
		t.Errorf("a container with another way out was attached: %s", out)
	}
	thief.Stop()
	thief.Start()
	b.assertWorks("from then on it is the box's")
	b.NoInternalErrors()
}

// A process or a path is not attached again automatically, because another process may have the ID or the name.
func TestProcessThatEndedIsGone(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	f := harness.NewForeignBox(t)
	made, code := w.GatewayCommand("box", "attach", "--json", "--pid", strconv.Itoa(f.PID), "--name", "agent", "--policy", "allow-all")
	var box struct{ ID string }
	if err := json.Unmarshal([]byte(made), &box); code != 0 || err != nil {
		t.Fatal(made)
	}
	stays := harness.ExecDetached("nsenter", "-t", strconv.Itoa(f.PID), "-n", "cat")
	held, err := stays.StdinPipe()
	if err != nil || stays.Start() != nil {
		t.Fatal(err)
	}
	w.Until("another process is in its namespace", func() bool {
		want, err := os.Readlink("/proc/" + strconv.Itoa(f.PID) + "/ns/net")
		its, _ := os.Readlink("/proc/" + strconv.Itoa(stays.Process.Pid) + "/ns/net")
		return err == nil && its == want
	})
	f.End()
	if out, code := w.GatewayCommand("box", "reattach", "agent"); code != 1 || !strings.Contains(out, "there is no process") {
		t.Errorf("reattached to a process that has ended: %d %s", code, out)
	}
	if status, problem := w.BoxStatus(box.ID); status != "idle" {
		t.Errorf("while there is another process in its namespace the box is %s: %s", status, problem)
	}
	held.Close()
	_ = stays.Wait()
	w.UntilStatus(box.ID, "gone")
	other := harness.NewForeignBox(t)
	if out, code := w.GatewayCommand("box", "reattach", "agent", "--netns", other.Path()); code != 0 {
		t.Fatalf("reattached to a path: %d %s", code, out)
	}
	if out, code := other.Sh("curl -sS --max-time 60 http://plain.example.com/seen"); code != 0 || !strings.Contains(out, "GET /seen") {
		t.Errorf("from its new sandbox: %d %s", code, out)
	}
	if out, code := w.GatewayCommand("box", "reattach", "agent"); code != 0 {
		t.Errorf("attached to where it is: %d %s", code, out)
	}
	other.End()
	w.UntilStatus(box.ID, "gone")
}

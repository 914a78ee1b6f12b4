package fault

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// importSleep creates an image of one program, which sleeps.
func (d *docker) importSleep() {
	d.w.T.Helper()
	files, err := exec.Command("sh", "-c", `echo /bin/sleep; ldd /bin/sleep | grep -o '/[^ ]*'`).Output()
	if err != nil {
		d.w.T.Fatal(err)
	}
	tar := exec.Command("tar", append([]string{"--create", "--dereference", "--absolute-names"}, strings.Fields(string(files))...)...)
	image, err := tar.StdoutPipe()
	if err != nil || tar.Start() != nil {
		d.w.T.Fatal(err)
	}
	if out, err := d.output(image, "import", "-", "sleep"); err != nil || tar.Wait() != nil {
		d.w.T.Fatal(out, err)
	}
}

// A box follows a real Docker container: through stop and start, restart, kill, a restart of the daemon, and one of the
// gateway. A new container of the same name gets no access.
func TestAttachedBoxFollowsAContainerOfDocker(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	d := startDocker(w)
	d.shared = true
	w.Env = append(w.Env, "DOCKER_HOST=unix://"+d.dir+"/sock")
	w.StartIfStopped()
	d.start()
	d.importSleep()
	must := func(args ...string) string {
		t.Helper()
		out, err := d.output(nil, args...)
		if err != nil {
			t.Fatalf("docker %v: %v %s", args, err, out)
		}
		return out
	}
	t.Cleanup(func() {
		_ = d.run("rm", "--force", "guest")
		d.signal(syscall.SIGTERM)
	})
	run := []string{"run", "--detach", "--stop-signal", "KILL", "--network", "none", "--dns", "1.1.1.1", "--name", "guest", "sleep", "/bin/sleep", "1d"}
	must(run...)
	out, code := w.GatewayCommand("box", "attach", "--json", "--container", "guest", "--policy", "allow-all")
	var box struct{ ID string }
	if err := json.Unmarshal([]byte(out), &box); code != 0 || err != nil {
		t.Fatal(out)
	}
	reaches := func(when string) {
		t.Helper()
		w.Until(when+": the container has its network", func() bool {
			pid := must("inspect", "--format", "{{.State.Pid}}", "guest")
			out, err := exec.Command("nsenter", "-t", pid, "-n", "curl", "-sS", "--max-time", "5", "-o", "/dev/null",
				"http://"+netip.AddrPortFrom(w.V4("plain.example.com"), 80).String()+"/").CombinedOutput()
			return err == nil && len(out) == 0
		})
		w.UntilStatus(box.ID, "idle")
	}
	reaches("attached")
	resolvers, err := os.ReadFile("/proc/" + must("inspect", "--format", "{{.State.Pid}}", "guest") + "/root/etc/resolv.conf")
	if err != nil || !strings.Contains(string(resolvers), "nameserver 1.1.1.1") { // as in the README
		t.Errorf("the container asks none of the servers it was given: %v\n%s", err, resolvers)
	}
	for _, act := range [][]string{{"restart", "--time", "0", "guest"}, {"kill", "guest"}, {"stop", "--time", "0", "guest"}} {
		must(act...)
		if act[0] != "restart" {
			w.UntilStatus(box.ID, "gone")
			must("start", "guest")
		}
		reaches("after docker " + act[0])
	}
	w.Kill()
	must("restart", "--time", "0", "guest")
	w.StartIfStopped()
	reaches("restarted while the gateway was down")
	d.signal(syscall.SIGTERM) // which stops containers
	w.UntilStatus(box.ID, "gone")
	d.start()
	must("start", "guest")
	reaches("after a restart of Docker")
	must("rm", "--force", "guest")
	w.UntilStatus(box.ID, "gone")
	must(run...)
	pid := must("inspect", "--format", "{{.State.Pid}}", "guest")
	if out, code := w.GatewayCommand("box", "reattach", box.ID); code != 1 {
		t.Errorf("reattached to another container: %s", out)
	}
	if n, _ := strconv.Atoi(pid); n > 0 {
		if out, err := exec.Command("nsenter", "-t", pid, "-n", "ip", "-o", "link").CombinedOutput(); err != nil || strings.Contains(string(out), "eth0") {
			t.Errorf("another container of the same name has the network: %v %s", err, out)
		}
	}
}

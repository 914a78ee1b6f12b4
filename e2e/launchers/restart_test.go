package launchers

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// restartable is containerd in a mount namespace that outlives it.
type restartable struct {
	*daemon
	pid int // of containerd
}

const containerdLine = `containerd --address $D/sock --root $D/data --state $D/exec`

// newRestartable starts containerd.
func newRestartable(w *harness.World) *restartable {
	w.T.Helper()
	d := newDaemon(w, containerdLine+` & echo $! >$D/pid; exec sleep infinity`, "nsenter", "--mount", "--target", "$P", dockerRoot+"/usr/bin/ctr", "--address", "$D/sock")
	d.start()
	text, err := os.ReadFile(filepath.Join(d.dir, "pid"))
	if err != nil {
		w.T.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		w.T.Fatal(err)
	}
	return &restartable{daemon: d, pid: pid}
}

// stop ends containerd by a signal. Its containers keep running.
func (r *restartable) stop(signal syscall.Signal) {
	r.w.T.Helper()
	if err := syscall.Kill(r.pid, signal); err != nil {
		r.w.T.Fatal(err)
	}
	r.w.Until("containerd has ended", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// again starts containerd another time.
func (r *restartable) again() {
	r.w.T.Helper()
	cmd := exec.Command("nsenter", "--mount", "--target", strconv.Itoa(r.process.Process.Pid), "sh", "-c", "exec "+containerdLine)
	cmd.Env = []string{"D=" + r.dir, "PATH=" + strings.Join([]string{filepath.Join(r.dir, "bin"), dockerRoot + "/usr/sbin", dockerRoot + "/usr/bin", "/usr/bin", "/bin"}, ":")}
	log, err := os.OpenFile(filepath.Join(r.dir, "log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		r.w.T.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := r.w.Net.Gateway().Start(cmd); err != nil {
		r.w.T.Fatal(err)
	}
	go func() { _ = cmd.Wait() }()
	r.pid = cmd.Process.Pid
	r.w.Until("containerd answers again", func() bool { _, err := r.try("version"); return err == nil })
}

// shim returns the process of containerd that watches a container.
func (r *restartable) shim(id string) int {
	r.w.T.Helper()
	for _, pid := range r.processes() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(line), "containerd-shim") && strings.Contains(string(line), "\x00"+id+"\x00") {
			return pid
		}
	}
	r.w.T.Fatalf("the container %s has no shim", id)
	return 0
}

// records returns the directories that `gateway oci` keeps about the containers.
func (r *restartable) records() []string {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/run/boxgate-oci", r.process.Process.Pid))
	var found []string
	for _, e := range entries {
		if e.IsDir() {
			found = append(found, e.Name())
		}
	}
	if err != nil {
		r.w.T.Error(err)
	}
	return found
}

// policyOf returns the policy and the status of a box.
func policyOf(w *harness.World, box string) string {
	w.T.Helper()
	var view struct {
		Status        string
		NetworkPolicy json.RawMessage `json:"network_policy"`
	}
	if err := w.Client.Get(w.T.Context(), "/v2/box/"+box, &view); err != nil {
		w.T.Fatal(err)
	}
	return view.Status + " " + string(view.NetworkPolicy)
}

// Containers keep their box and its policy while containerd and the gateway are restarted or killed. Their deletion afterwards detaches them,
// also the one by containerd of a container whose shim was killed.
func TestContainersOutliveContainerdAndTheGateway(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	w := harness.Shared(t)
	e := newEngine(w, "runc", guarded(t)...)
	ids := []string{"stays", "orphan"}
	containers := []*container{e.newContainer(ids[0], "", nil), e.newContainer(ids[1], "", nil)} // before the daemon's mount namespace
	d := newRestartable(w)
	boxes := map[string]string{}
	for i, id := range ids {
		c := containers[i]
		d.must("run", "--detach", "--runc-binary", e.program, "--rootfs", "--env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "--cgroup", cgroupOf(d.dir, id),
			filepath.Join(c.bundle, "rootfs"), id, "sh", "-c", asks)
		isGuarded(t, c.read("out"))
		found := boxesOf(w, id)
		if len(found) != 1 {
			t.Fatalf("boxes of %s: %v", id, found)
		}
		boxes[id] = found[0]
	}
	before := policyOf(w, boxes["stays"])
	for i, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		d.stop(signal)
		w.Kill()
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.again()
		for _, id := range ids {
			out, err := d.try("task", "exec", "--exec-id", fmt.Sprintf("asks-%d", i), id, "sh", "-c",
				"curl -sS --max-time 60 https://api.example.com/echo; echo; curl -sS --max-time 60 https://evil.example.net/; echo status $?")
			if err != nil || !strings.Contains(out, harness.Canary) || !strings.Contains(out, "status 35") {
				t.Errorf("%s after the signal %v: %v %s", id, signal, err, out)
			}
			if got := boxesOf(w, id); len(got) != 1 || got[0] != boxes[id] {
				t.Errorf("boxes of %s after the signal %v: %v, not %s", id, signal, got, boxes[id])
			}
		}
		if got := policyOf(w, boxes["stays"]); got != before {
			t.Errorf("after the signal %v the box is %s, not %s", signal, got, before)
		}
	}
	d.stop(syscall.SIGKILL)
	if err := syscall.Kill(d.shim("orphan"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.again()
	untilNoBox(w, "orphan")
	if got := boxesOf(w, "stays"); len(got) != 1 || len(d.records()) != 1 {
		t.Errorf("boxes %v and records %v after containerd has deleted another container", got, d.records())
	}
	d.must("task", "kill", "--signal", "SIGKILL", "stays")
	w.Until("containerd deletes it", func() bool { _, err := d.try("task", "rm", "--force", "stays"); return err == nil })
	if got := boxesOf(w, "stays"); len(got) != 0 || len(d.records()) != 0 {
		t.Errorf("boxes %v and records %v after its deletion", got, d.records())
	}
	for _, id := range ids {
		d.must("container", "rm", id)
	}
}

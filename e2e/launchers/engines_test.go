package launchers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// containerd runs containers of `ctr` behind the gateway, and shows why it refuses one.
func TestContainerdWithTheGatewayAsRuntime(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	w := harness.Shared(t)
	e := newEngine(w, "runc", guarded(t)...)
	c := e.newContainer("ctr-agent", "", nil)
	rootfs := filepath.Join(c.bundle, "rootfs")
	d := newDaemon(w, `exec containerd --address $D/sock --root $D/data --state $D/exec`, "nsenter", "--mount", "--target", "$P", dockerRoot+"/usr/bin/ctr", "--address", "$D/sock")
	d.start()
	run := func(id string, more ...string) (string, error) {
		args := append([]string{"run", "--detach", "--runc-binary", e.program, "--rootfs", "--env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "--cgroup", cgroupOf(d.dir, id)}, more...)
		return d.try(append(args, rootfs, id, "sh", "-c", "rm -f /out; "+asks)...)
	}
	if out, err := run("ctr-agent"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	isGuarded(t, c.read("out"))
	if got := boxesOf(w, "ctr-agent"); len(got) != 1 {
		t.Errorf("boxes: %v", got)
	}
	for _, tt := range []struct{ flag, why string }{
		{"--annotation=boxgate.dev/policy=allow-all", "does not allow here"}, {"--net-host", "network namespace of the host"}, {"--privileged", "cannot be behind the gateway"},
	} {
		if out, err := run("ctr-refused", tt.flag); err == nil || !strings.Contains(out, tt.why) {
			t.Errorf("%s: %v %s", tt.flag, err, out)
		}
		_, _ = d.try("container", "rm", "ctr-refused")
	}
	d.must("task", "kill", "--signal", "SIGKILL", "ctr-agent")
	untilNoBox(w, "ctr-agent")
	w.Until("containerd deletes it", func() bool { _, err := d.try("task", "rm", "--force", "ctr-agent"); return err == nil })
	d.must("container", "rm", "ctr-agent")
}

// podmanRoot is where `make podman` unpacks Podman, which is not installed on the machine.
const podmanRoot = "/var/lib/boxgate/podman"

// Podman runs containers behind the gateway, alone and as a pod, whose containers have one network.
func TestPodmanWithTheGatewayAsRuntime(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	if _, err := os.Stat(filepath.Join(podmanRoot, "usr/bin/podman")); err != nil {
		t.Fatalf("there is no Podman to test with: run `sudo make podman` (%v)", err)
	}
	w := harness.Shared(t)
	e := newEngine(w, "runc", guarded(t)...)
	c := e.newContainer("podman-agent", "", nil)
	rootfs := filepath.Join(c.bundle, "rootfs")
	d := newDaemon(w, `mount -t tmpfs none /dev/shm && exec sleep infinity`, "nsenter", "--mount", "--target", "$P", podmanRoot+"/usr/bin/podman", "--root", "$D/data", "--runroot", "$D/exec",
		"--tmpdir", "$D/work", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "file", "--conmon", podmanRoot+"/usr/bin/conmon", "--runtime", e.program)
	d.env = []string{"LD_LIBRARY_PATH=" + podmanRoot + "/usr/lib/x86_64-linux-gnu:" + podmanRoot + "/usr/lib/aarch64-linux-gnu"}
	d.start()
	id := d.must("run", "--detach", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--network", "none", "--name", "podman-agent", "--rootfs", rootfs, "sh", "-c", "rm -f /out; "+asks)
	isGuarded(t, c.read("out"))
	if got := boxesOf(w, id); len(got) != 1 {
		t.Errorf("boxes: %v", got)
	}
	if got := d.must("exec", "podman-agent", "ls", "/sys/class/net"); strings.Join(strings.Fields(got), " ") != "eth0 lo" {
		t.Errorf("interfaces: %s", got)
	}
	if out, err := d.try("run", "--rm", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--network", "none", "--annotation", "boxgate.dev/policy=allow-all", "--rootfs", rootfs, "true"); err == nil || !strings.Contains(out, "does not allow here") {
		t.Errorf("an annotation: %v %s", err, out)
	}
	if out, err := d.try("run", "--rm", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--network", "container:podman-agent", "--rootfs", rootfs, "sh", "-c", "curl -sS --max-time 60 https://api.example.com/echo"); err != nil || !strings.Contains(out, harness.Canary) {
		t.Errorf("a container that joins the network: %v %s", err, out)
	}
	if got := boxesOf(w, id); len(got) != 1 {
		t.Errorf("boxes after a member has ended: %v", got)
	}
	d.must("restart", "--time", "0", "podman-agent")
	isGuarded(t, c.read("out"))
	d.must("rm", "--force", "--time", "0", "podman-agent")
	untilNoBox(w, id)
}

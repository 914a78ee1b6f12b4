package fault

import (
	"context"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"boxgate/e2e/harness"
)

// dockerRoot is where `make docker` unpacks a Docker that is not installed on the machine.
const dockerRoot = "/var/lib/boxgate/docker"

// docker is a Docker daemon in the network namespace of a world's gateway, with separate mount and PID namespaces.
type docker struct {
	w       *harness.World
	dir     string
	process *exec.Cmd
	exited  chan struct{}
	shared  bool // it shares the host's PID namespace, so that the gateway finds its containers
}

// startDocker creates a daemon; [docker.start] starts it.
func startDocker(w *harness.World) *docker {
	w.T.Helper()
	if _, err := os.Stat(filepath.Join(dockerRoot, "usr/sbin/dockerd")); err != nil {
		w.T.Fatalf("there is no Docker to test with: run `sudo make docker` (%v)", err)
	}
	d := &docker{w: w, dir: filepath.Join(w.Dir, "docker")}
	for _, sub := range []string{"bin", "data", "exec", "etc", "work"} {
		if err := os.MkdirAll(filepath.Join(d.dir, sub), 0o700); err != nil {
			w.T.Fatal(err)
		}
	}
	// Its PATH has its dependencies but no modprobe, so that the machine's kernel is not changed.
	for _, tool := range []string{"iptables", "ip6tables", "ip", "runc", "mount", "true"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			w.T.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(d.dir, "bin", tool)); err != nil {
			w.T.Fatal(err)
		}
	}
	w.T.Cleanup(func() { d.signal(syscall.SIGKILL) })
	return d
}

// start starts the daemon and returns when it answers.
func (d *docker) start() {
	d.w.T.Helper()
	script := `mount -t tmpfs none /run && mount -t overlay -o lowerdir=/etc,upperdir=$D/etc,workdir=$D/work none /etc &&
exec dockerd --host unix://$D/sock --data-root $D/data --exec-root $D/exec --pidfile $D/pid --storage-driver vfs`
	apart := []string{"--mount", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if d.shared {
		apart = apart[:1]
	}
	cmd := exec.Command("unshare", append(apart, "sh", "-c", script)...)
	cmd.Env = []string{"D=" + d.dir, "PATH=" + strings.Join([]string{filepath.Join(d.dir, "bin"), dockerRoot + "/usr/sbin", dockerRoot + "/usr/bin"}, ":")}
	log, err := os.Create(filepath.Join(d.dir, "log"))
	if err != nil {
		d.w.T.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if sh, err := exec.LookPath("sh"); err == nil {
		_ = os.Symlink(sh, filepath.Join(d.dir, "bin", "sh"))
	}
	if err := d.w.Net.Gateway().Start(cmd); err != nil {
		d.w.T.Fatal(err)
	}
	d.process, d.exited = cmd, make(chan struct{})
	exited := d.exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	deadline := time.Now().Add(harness.Patience)
	for d.run("version") != nil {
		select {
		case <-exited:
		case <-time.After(20 * time.Millisecond):
			if time.Now().Before(deadline) {
				continue
			}
		}
		text, _ := os.ReadFile(log.Name())
		d.w.T.Fatalf("the Docker daemon does not answer:\n%s", harness.Tail(string(text), 3000))
	}
}

// run runs a command of the docker client.
func (d *docker) run(args ...string) error {
	_, err := d.output(nil, args...)
	return err
}

// output is run with an input, and returns the output. It also works in cleanups, when the test's context has ended.
func (d *docker) output(stdin io.Reader, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.w.T.Context()), harness.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, dockerRoot+"/usr/bin/docker", append([]string{"--host", "unix://" + d.dir + "/sock"}, args...)...)
	cmd.Env = []string{"HOME=" + d.dir}
	cmd.Stdin = stdin
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// signal ends the daemon by a signal to the first process of its namespace, whose parent then reaps it.
func (d *docker) signal(sig syscall.Signal) {
	if d.process == nil {
		return
	}
	if d.shared {
		_ = d.process.Process.Signal(sig)
	}
	pid := strconv.Itoa(d.process.Process.Pid)
	children, _ := os.ReadFile(filepath.Join("/proc", pid, "task", pid, "children"))
	if d.shared {
		children = nil // ended by the daemon
	}
	for child := range strings.FieldsSeq(string(children)) {
		if n, err := strconv.Atoi(child); err == nil {
			_ = syscall.Kill(n, sig)
		}
	}
	select {
	case <-d.exited:
	case <-time.After(harness.Patience):
		d.w.T.Error("the Docker daemon does not stop")
		_ = d.process.Process.Kill()
		<-d.exited
	}
	d.process = nil
}

// A Docker daemon runs on the same host: it starts, creates and removes networks, restarts, and other programs flush
// and rewrite its tables. Denied traffic stays denied. Allowed traffic works once Docker's own chain accepts it, by
// the command of `gateway check`.
func TestAttackBesideDocker(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	r := w.Raid(w.Create(map[string]any{"network_policy": wide}))
	s := besiege(w, harness.AttackerAt(101))
	open := func(what string) {
		t.Helper()
		for _, a := range extra {
			w.Until(what+": what is allowed passes", func() bool { return r.Try("udp", netip.AddrPortFrom(a, 4444)) == harness.Saw(nil) })
		}
		w.Untouched(s.targets[0], s.targets[1])
	}
	gateway := func(name string, args ...string) {
		t.Helper()
		if out, err := w.Net.Gateway().Run(t.Context(), name, args...); err != nil {
			t.Fatalf("%s %v: %v %s", name, args, err, out)
		}
	}
	open("before Docker")
	restored := w.Restored()
	d := startDocker(w)
	d.start()
	open("with Docker, which found forwarding on")
	// A daemon started before the gateway finds forwarding off, turns it on, and drops unknown traffic.
	gateway("iptables", "-P", "FORWARD", "DROP")
	if got := r.Try("udp", netip.AddrPortFrom(extra[0], 4444)); got != harness.SawNothing {
		t.Errorf("Docker drops what it does not know, and yet the box sees %s", got)
	}
	gateway("sh", "-c", remedyOf(w, otherRules(w), "Docker"))
	if got := otherRules(w); got != "" {
		t.Errorf("after its command, the check reports: %s", got)
	}
	open("with Docker")
	for range 2 {
		if err := d.run("network", "create", "other"); err != nil {
			t.Fatal(err)
		}
		open("with a network of Docker's")
		if err := d.run("network", "rm", "other"); err != nil {
			t.Fatal(err)
		}
	}
	d.signal(syscall.SIGTERM)
	d.start()
	open("after a restart of Docker")
	if n := w.Restored(); n != restored {
		t.Errorf("the gateway has restored its rules %d times, which Docker does not touch", n-restored)
	}
	for _, tool := range []string{"iptables", "ip6tables"} {
		for _, args := range [][]string{{"-P", "FORWARD", "ACCEPT"}, {"-F"}, {"-t", "nat", "-F"}, {"-t", "mangle", "-F"}, {"-t", "raw", "-F"},
			{"-I", "FORWARD", "-j", "ACCEPT"}, {"-t", "mangle", "-I", "PREROUTING", "-j", "ACCEPT"}, {"-t", "raw", "-I", "PREROUTING", "-j", "ACCEPT"}} {
			gateway(tool, args...)
			open(tool + " " + strings.Join(args, " "))
		}
	}
	d.signal(syscall.SIGTERM)
	d.start()
	s.assertHolds()
}

package launchers

import (
	"context"
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

// dockerRoot is where `make docker` unpacks Docker and containerd, which are not installed on the machine.
const dockerRoot = "/var/lib/boxgate/docker"

// daemon is a container daemon in the network namespace of a world's gateway, with a mount namespace, /run and /etc of its own.
type daemon struct {
	w       *harness.World
	dir     string
	script  string   // starts it; $D is dir
	client  []string // its command line; $P is the daemon's process
	env     []string // of the client
	process *exec.Cmd
	exited  chan struct{}
}

// newDaemon makes a daemon; [daemon.start] starts it.
func newDaemon(w *harness.World, script string, client ...string) *daemon {
	w.T.Helper()
	if _, err := os.Stat(filepath.Join(dockerRoot, "usr/sbin/dockerd")); err != nil {
		w.T.Fatalf("there is no Docker to test with: run `sudo make docker` (%v)", err)
	}
	dir, err := os.MkdirTemp("", "launchers-") // short, for the paths of its sockets
	if err != nil {
		w.T.Fatal(err)
	}
	d := &daemon{w: w, dir: dir, script: script}
	for _, word := range client {
		d.client = append(d.client, strings.ReplaceAll(word, "$D", dir))
	}
	for _, sub := range []string{"bin", "data", "exec", "etc", "work"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			w.T.Fatal(err)
		}
	}
	// Its PATH has its dependencies but no modprobe, so that the machine's kernel is not changed.
	for _, tool := range []string{"iptables", "ip6tables", "ip", "runc", "crun", "mount", "true", "sh", "unshare", "umount", "sleep"} {
		path, err := exec.LookPath(tool)
		if err == nil {
			err = os.Symlink(path, filepath.Join(dir, "bin", tool))
		}
		if err != nil {
			w.T.Fatal(err)
		}
	}
	w.T.Cleanup(func() {
		d.end()
		_ = os.RemoveAll(dir)
	})
	return d
}

// start starts the daemon and returns when it answers.
func (d *daemon) start() {
	d.w.T.Helper()
	cmd := exec.Command("unshare", "--mount", "sh", "-c",
		`mount -t tmpfs none /run && mount -t overlay -o lowerdir=/etc,upperdir=$D/etc,workdir=$D/work none /etc && `+d.script)
	cmd.Env = []string{"D=" + d.dir, "PATH=" + strings.Join([]string{filepath.Join(d.dir, "bin"), dockerRoot + "/usr/sbin", dockerRoot + "/usr/bin"}, ":")}
	log, err := os.Create(filepath.Join(d.dir, "log"))
	if err != nil {
		d.w.T.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
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
	for {
		if _, err := d.try("version"); err == nil {
			return
		}
		select {
		case <-exited:
		case <-time.After(20 * time.Millisecond):
			if time.Now().Before(deadline) {
				continue
			}
		}
		text, _ := os.ReadFile(log.Name())
		d.w.T.Fatalf("the daemon does not answer:\n%s", harness.Tail(string(text), 3000))
	}
}

// try runs a command of the client. It also works in cleanups, when the test's context has ended.
func (d *daemon) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.w.T.Context()), harness.Patience)
	defer cancel()
	words := append(append([]string{}, d.client...), args...)
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], "$P", strconv.Itoa(d.process.Process.Pid))
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = append([]string{"HOME=" + d.dir, "PATH=" + os.Getenv("PATH")}, d.env...)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// must is try without errors.
func (d *daemon) must(args ...string) string {
	d.w.T.Helper()
	out, err := d.try(args...)
	if err != nil {
		d.w.T.Fatalf("%s: %v %s", strings.Join(args, " "), err, harness.Tail(out, 3000))
	}
	return out
}

// end kills the daemon and everything that it has started, as a power failure would.
func (d *daemon) end() {
	if d.process == nil {
		return
	}
	_ = d.process.Process.Kill()
	<-d.exited
	d.process = nil
	d.w.Until("the processes of the daemon have ended", func() bool {
		left := d.processes()
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(left) == 0
	})
}

// processes returns the processes that name the directory of the daemon in their command line or are below one of these.
func (d *daemon) processes() (found []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		d.w.T.Error(err)
	}
	children := map[int][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if _, rest, ok := strings.Cut(string(stat), ") "); ok && !strings.HasPrefix(rest, "Z") {
			parent, _ := strconv.Atoi(strings.Fields(rest)[1])
			children[parent] = append(children[parent], pid)
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if strings.Contains(string(line), d.dir+"/") {
			found = append(found, pid)
		}
	}
	for i := 0; i < len(found) && len(found) < 1000; i++ {
		found = append(found, children[found[i]]...)
	}
	return found
}

// rootTar writes a tar of a small image.
func rootTar(w *harness.World, path string) {
	w.T.Helper()
	images, err := filepath.Glob(filepath.Join(harness.ImageDir(), "debian-min-[0-9]*", "rootfs"))
	if err != nil || len(images) == 0 {
		w.T.Fatal("there is no debian-min image: sudo make image", err)
	}
	if out, err := exec.Command("tar", "-C", images[len(images)-1], "-cf", path, ".").CombinedOutput(); err != nil {
		w.T.Fatalf("tar: %v %s", err, out)
	}
}

// dockerd starts Docker.
const dockerd = `exec dockerd --host unix://$D/sock --data-root $D/data --exec-root $D/exec --pidfile $D/pid --storage-driver vfs --add-runtime boxgate=$D/gateway-oci`

// Docker runs containers behind the gateway with its option --runtime, whatever network it would give them.
func TestDockerWithTheGatewayAsRuntime(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	d := newDaemon(w, dockerd, dockerRoot+"/usr/bin/docker", "--host", "unix://$D/sock")
	script(w, d.dir, append(append([]string{"oci"}, guarded(t)...), "runc")...)
	d.start()
	rootTar(w, filepath.Join(d.dir, "root.tar"))
	d.must("import", filepath.Join(d.dir, "root.tar"), "small")
	written := func(name string) string {
		t.Helper()
		out := ""
		w.Until(name+" has written", func() bool {
			var err error
			out, err = d.try("exec", name, "cat", "/out")
			return err == nil
		})
		return out
	}
	var ids []string
	for _, network := range []string{"none", "bridge"} {
		name := "agent-" + network
		id := d.must("run", "--detach", "--runtime", "boxgate", "--network", network, "--name", name, "small", "sh", "-c", "rm -f /out; "+asks)
		ids = append(ids, id)
		isGuarded(t, written(name))
		if got := d.must("exec", name, "ls", "/sys/class/net"); strings.Join(strings.Fields(got), " ") != "eth0 lo" {
			t.Errorf("%s has the interfaces %s", name, got)
		}
		if got := boxesOf(w, id); len(got) != 1 {
			t.Errorf("boxes of %s: %v", name, got)
		}
	}
	before := boxesOf(w, ids[1])
	d.must("restart", "--time", "0", "agent-bridge")
	isGuarded(t, written("agent-bridge"))
	if after := boxesOf(w, ids[1]); len(after) != 1 || after[0] == before[0] {
		t.Errorf("boxes of a restarted container: %v, then %v", before, after)
	}
	t.Run("PowerFailure", func(t *testing.T) {
		d := *d
		d.w = w.On(t)
		d.end()
		untilNoBox(d.w, ids[0])
		if err := os.RemoveAll(filepath.Join(d.dir, "exec")); err != nil {
			t.Fatal(err)
		}
		d.start()
		d.must("start", "agent-none")
		isGuarded(t, written("agent-none"))
		if out, err := d.try("run", "--rm", "--runtime", "boxgate", "--network", "host", "small", "true"); err == nil || !strings.Contains(out, "network namespace of the host") {
			t.Errorf("with the network of the host: %v %s", err, out)
		}
		if out, err := d.try("run", "--rm", "--runtime", "boxgate", "--privileged", "small", "true"); err == nil || !strings.Contains(out, "cannot be behind the gateway") {
			t.Errorf("privileged: %v %s", err, out)
		}
		d.must("rm", "--force", "agent-none", "agent-bridge")
		for _, id := range ids {
			untilNoBox(d.w, id)
		}
		d.end()
	})
}

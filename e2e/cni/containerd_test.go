package cni

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// dockerRoot is where `make docker` unpacks Debian's containerd and runc.
const dockerRoot = "/var/lib/boxgate/docker"

// programImage is the image of the tests' containers, and of the first container of each pod.
const programImage = "boxgate.test/program:1"

// containerd is Debian's containerd on the host of a world's gateway.
type containerd struct {
	n       *network
	dir     string
	process *exec.Cmd
}

// containerdConf is its configuration. The runtime class boxgate has a network of its own, with the plugin alone.
const containerdConf = `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[1]s/sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + programImage + `"
  netns_mounts_under_state_dir = true
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "%[2]s/bin"
    conf_dir = "%[2]s"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.boxgate]
      runtime_type = "io.containerd.runc.v2"
      cni_conf_dir = "%[2]s/alone"
`

// newContainerd starts containerd with the network of n, and the image of the tests. classes are further runtime classes.
func newContainerd(n *network, classes ...string) *containerd {
	n.T.Helper()
	c := &containerd{n: n, dir: filepath.Join(n.dir, "containerd")}
	for _, plugin := range []string{"bridge", "loopback", "host-local", "portmap"} {
		if err := os.Symlink(filepath.Join(tools, "plugins", plugin), filepath.Join(n.dir, "bin", plugin)); err != nil {
			n.T.Fatal(err)
		}
	}
	c.file("containerd.toml", fmt.Sprintf(containerdConf, c.dir, n.dir)+strings.Join(classes, ""))
	alone, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": n.name + "-alone", "plugins": []map[string]any{n.conf}})
	if err != nil {
		n.T.Fatal(err)
	}
	c.file("../alone/alone.conflist", string(alone))
	c.start()
	n.T.Cleanup(c.end)
	image := filepath.Join(c.dir, "image.tar")
	if err := writeImage(image); err != nil {
		n.T.Fatal(err)
	}
	if out, err := c.ctr("-n", "k8s.io", "images", "import", image); err != nil {
		n.T.Fatal(err, out)
	}
	return c
}

// file writes a file and returns its path.
func (c *containerd) file(name, text string) string {
	c.n.T.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		c.n.T.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.n.T.Fatal(err)
	}
	return path
}

// writeImage writes an image with this test binary alone.
func writeImage(path string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	var layer bytes.Buffer
	files := tar.NewWriter(&layer)
	if err := files.WriteHeader(&tar.Header{Name: "program", Mode: 0o755, Size: int64(len(program))}); err != nil {
		return err
	}
	if _, err := files.Write(program); err != nil {
		return err
	}
	if err := files.Close(); err != nil {
		return err
	}
	content, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, content)
	if err != nil {
		return err
	}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{Architecture: "amd64", OS: "linux", RootFS: must(image.ConfigFile()).RootFS,
		Config: v1.Config{Entrypoint: []string{"/program"}, Cmd: []string{rolePause}}})
	if err != nil {
		return err
	}
	return tarball.WriteToFile(path, must(name.NewTag(programImage)), image)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// start starts the daemon and returns when it answers.
func (c *containerd) start() {
	c.n.T.Helper()
	log, err := os.OpenFile(filepath.Join(c.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.n.T.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(dockerRoot+"/usr/bin/containerd", "--config", filepath.Join(c.dir, "containerd.toml"))
	cmd.Env = append(os.Environ(), "PATH="+dockerRoot+"/usr/bin:"+dockerRoot+"/usr/sbin:"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.n.Net.Gateway().Start(cmd); err != nil {
		c.n.T.Fatal(err)
	}
	c.process = cmd
	c.n.Until("containerd answers", func() bool { _, err := c.crictl("info"); return err == nil })
}

// stop kills the daemon. Its pods keep running.
func (c *containerd) stop() {
	_ = c.process.Process.Kill()
	_ = c.process.Wait()
}

// end removes the pods and ends the daemon.
func (c *containerd) end() {
	if out, err := c.crictl("rmp", "--all", "--force"); err != nil {
		c.n.T.Errorf("removing the pods: %v %s", err, out)
	}
	c.stop()
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if path := strings.Fields(line)[1]; strings.HasPrefix(path, c.dir) {
			_ = syscall.Unmount(path, syscall.MNT_DETACH) // of pods that could not be removed
		}
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + c.n.name)
	for _, group := range append(groups, "/sys/fs/cgroup/"+c.n.name) {
		c.n.Until("the control group "+group+" is removed", func() bool { return removeGroup(group) })
	}
	if c.n.T.Failed() {
		text, _ := os.ReadFile(filepath.Join(c.dir, "log"))
		c.n.T.Logf("the log of containerd ended with:\n%s", harness.Tail(string(text), 3000))
	}
}

// removeGroup removes a control group with those below, and reports whether it is gone. The kernel keeps a group while a process in it is
// exiting.
func removeGroup(path string) bool {
	var groups []string
	_ = filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			groups = append(groups, path)
		}
		return nil // gone already
	})
	for _, group := range slices.Backward(groups) {
		_ = os.Remove(group)
	}
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

func (c *containerd) ctr(args ...string) (string, error) {
	return c.client(dockerRoot+"/usr/bin/ctr", append([]string{"--address", c.dir + "/sock"}, args...)...)
}

func (c *containerd) crictl(args ...string) (string, error) {
	socket := "unix://" + c.dir + "/sock"
	return c.client(tools+"/bin/crictl", append([]string{"--config", "/dev/null", "--runtime-endpoint", socket, "--image-endpoint", socket, "--timeout", "2m"}, args...)...)
}

func (c *containerd) client(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.n.T.Context()), harness.Patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// podConfig returns the file that describes a pod to crictl.
func (c *containerd) podConfig(podName string, annotations map[string]string) string {
	return c.file("pods/"+podName+".json", string(must(json.Marshal(map[string]any{
		"metadata": map[string]any{"name": podName, "namespace": "default", "uid": podName, "attempt": 1}, "annotations": annotations,
		"log_directory": c.dir + "/logs", "dns_config": map[string]any{"servers": []string{"10.96.0.10"}, "searches": []string{"default.svc.cluster.local"}, "options": []string{"ndots:5"}},
		"linux": map[string]any{"cgroup_parent": "/" + c.n.name},
	}))))
}

// kernelFiles are hidden from a container and protected in it, as the kubelet asks for.
var kernelFiles = map[string]any{
	"masked_paths":   []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"},
	"readonly_paths": []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
}

// run runs a pod with a container for each role, and returns the IDs of the pod and the containers.
func (c *containerd) run(podName, class string, annotations map[string]string, roles ...string) (sandbox string, containers []string) {
	c.n.T.Helper()
	conf := c.podConfig(podName, annotations)
	sandbox, err := c.crictl("runp", "--runtime", class, conf)
	if err != nil {
		c.n.T.Fatalf("%s: %v %s", podName, err, sandbox)
	}
	for i, role := range roles {
		container := c.file(fmt.Sprintf("pods/%s-%d.json", podName, i), string(must(json.Marshal(map[string]any{
			"metadata": map[string]any{"name": fmt.Sprint(role, i)}, "image": map[string]any{"image": programImage}, "args": []string{role}, "log_path": podName + ".log", "linux": map[string]any{"security_context": kernelFiles},
		}))))
		id, err := c.crictl("create", sandbox, container, conf)
		if err != nil {
			c.n.T.Fatal(err, id)
		}
		if out, err := c.crictl("start", id); err != nil {
			c.n.T.Fatal(err, out)
		}
		containers = append(containers, id)
	}
	return sandbox, containers
}

// fetches requests a URL in a container.
func (c *containerd) fetches(container, url string) (string, bool) {
	out, err := c.crictl("exec", "--sync", container, "/program", roleFetch, url)
	return out, err == nil
}

// remove stops and removes a pod.
func (c *containerd) remove(sandbox string) {
	c.n.T.Helper()
	for _, command := range []string{"stopp", "rmp"} {
		if out, err := c.crictl(command, sandbox); err != nil {
			c.n.T.Errorf("%s: %v %s", command, err, out)
		}
	}
}

var webAnnotation = map[string]string{"boxgate.dev/policy": "named:" + webPolicy}

// containerd and crictl run pods of two containers: annotated, and by runtime class. They are confined, over restarts of containerd and
// of the gateway, and removed without a trace. Other pods keep their network.
func TestPodsOfContainerd(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	n := newNetwork(t, true, nil)
	list := map[string]any{"cniVersion": "1.0.0", "name": n.name, "disableCheck": true, "plugins": []map[string]any{n.bridge(), n.conf}}
	n.writeList(list) // containerd 1.6 knows CNI up to 1.0
	c := newContainerd(n)
	other, others := c.run("other", "runc", nil, roleServe)
	if out, ok := c.fetches(others[0], "http://127.0.0.1:8080/"); !ok {
		t.Error(out)
	}
	before := n.trace()
	confined := func(when string, containers []string) {
		t.Helper()
		for _, container := range containers {
			if out, ok := c.fetches(container, "http://127.0.0.1:8080/"); !ok || !strings.Contains(out, "the other container") {
				t.Errorf("%s: loopback: %s", when, out)
			}
			if out, ok := c.fetches(container, "https://api.example.com/"); !ok || !strings.Contains(out, "200 OK") {
				t.Errorf("%s: %s", when, out)
			}
			for _, denied := range []string{"https://evil.example.net/", "http://10.88.0.1/", "http://169.254.169.254/"} {
				if out, ok := c.fetches(container, denied); ok && !strings.Contains(out, "403") {
					t.Errorf("%s: %s is reached: %s", when, denied, out)
				}
			}
		}
	}
	annotated, two := c.run("annotated", "runc", webAnnotation, roleServe, rolePause)
	confined("annotated", two)
	classed, three := c.run("classed", "boxgate", webAnnotation, roleServe, rolePause)
	confined("by class", three)
	if out, err := c.crictl("runp", c.podConfig("greedy", map[string]string{"boxgate.dev/policy": "named:" + secretPolicy})); err == nil || !strings.Contains(out, "does not allow here") {
		t.Errorf("a pod that asks for more: %s", out)
	}
	c.stop()
	n.Kill()
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.start()
	confined("after restarts", append(two, three...))
	n.Kill()
	if out, err := c.crictl("runp", c.podConfig("late", webAnnotation)); err == nil {
		t.Errorf("a pod without a gateway: %s", out)
	}
	if out, ok := c.fetches(two[0], "https://api.example.com/"); ok {
		t.Errorf("a pod whose gateway is down: %s", out)
	}
	unannotated, _ := c.run("unannotated", "runc", nil)
	c.remove(unannotated)
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.remove(annotated)
	c.remove(classed)
	for _, left := range strings.Fields(must(c.crictl("pods", "-q", "--state", "notready"))) { // of failed calls
		c.remove(left)
	}
	if after := n.trace(); after != before {
		t.Errorf("left:\n%s\nbefore:\n%s", after, before)
	}
	c.remove(other)
}

// Ten pods of containerd start and end at the same time, again and again.
func TestManyPodsOfContainerd(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	n := newNetwork(t, true, nil)
	n.writeList(map[string]any{"cniVersion": "1.0.0", "name": n.name, "plugins": []map[string]any{n.bridge(), n.conf}})
	c := newContainerd(n)
	c.run("other", "runc", nil)
	before := n.trace()
	for round := range 50 {
		var all sync.WaitGroup
		for i := range 10 {
			conf := c.podConfig(fmt.Sprintf("pod-%d-%d", round, i), webAnnotation)
			all.Go(func() {
				sandbox, err := c.crictl("runp", conf)
				if err != nil {
					t.Errorf("round %d: %v %s", round, err, sandbox)
					return
				}
				c.remove(sandbox)
			})
		}
		all.Wait()
		if after := n.trace(); after != before {
			t.Fatalf("round %d left:\n%s\nbefore:\n%s", round, after, before)
		}
	}
}

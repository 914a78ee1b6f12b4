package fault

import (
	"context"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
	"boxgate/launcher/launchertest"
)

// importCurl builds an image with curl and Debian's certificate store.
func (d *docker) importCurl() {
	d.w.T.Helper()
	script := `(for p in /usr/bin/curl /bin/sh /usr/bin/env /bin/cat /bin/sleep /usr/bin/id; do echo $p; ldd $p | grep -o '/[^ ]*'; done
ls /lib/*/libnss_dns* /lib/*/libnss_files* /lib/*/libresolv* 2>/dev/null; echo /etc/ssl/certs/ca-certificates.crt; echo /etc/nsswitch.conf) | sort -u`
	files, err := exec.Command("sh", "-c", script).Output()
	if err != nil {
		d.w.T.Fatal(err)
	}
	tar := exec.Command("tar", append([]string{"--create", "--dereference", "--absolute-names"}, strings.Fields(string(files))...)...)
	image, err := tar.StdoutPipe()
	if err != nil || tar.Start() != nil {
		d.w.T.Fatal(err)
	}
	if out, err := d.output(image, "import", "--change", `ENTRYPOINT ["/usr/bin/env"]`, "--change", `CMD ["id"]`, "-", "curl"); err != nil || tar.Wait() != nil {
		d.w.T.Fatal(out, err)
	}
}

// dockerWorld starts a gateway that only attaches, next to a Docker daemon, without an image of boxes.
func dockerWorld(t *testing.T) (*harness.World, *docker) {
	t.Helper()
	w := harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
		c.Launcher.Enabled, c.Launcher.Runtime, c.Launcher.Images = false, "no-such-runtime", map[string]string{"default": "/nowhere"}
	}})
	d := startDocker(w)
	d.shared = true
	w.Env = append(w.Env, "DOCKER_HOST=unix://"+d.dir+"/sock")
	w.StartIfStopped()
	d.start()
	d.importCurl()
	return w, d
}

// gateway runs a command of the gateway that uses Docker.
func (d *docker) gateway(stdin string, args ...string) (out, errout string, status int) {
	d.w.T.Helper()
	ctx, cancel := context.WithTimeout(d.w.T.Context(), harness.Patience)
	defer cancel()
	cmd := d.w.Command(ctx, args...)
	cmd.WaitDelay = time.Second // its children may hold its output open
	cmd.Env = append(cmd.Env, "DOCKER_HOST=unix://"+d.dir+"/sock", "HOME="+d.dir, "PATH="+dockerRoot+"/usr/bin:/usr/bin:/bin")
	cmd.Stdin = strings.NewReader(stdin)
	var o, e strings.Builder
	cmd.Stdout, cmd.Stderr = &o, &e
	_ = cmd.Run()
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// TestDockerRun: a container has its network, policy and CA before its command runs. The key is outside of it. Standard
// input, exit status and the image's command work as with docker run. Options that would let it escape are refused.
func TestDockerRun(t *testing.T) {
	t.Parallel()
	w, d := dockerWorld(t)
	if out, code := w.GatewayCommand("box", "create", "--name", "launched"); code != 1 || !strings.Contains(out, "launcher.enabled") {
		t.Errorf("a box is created on a host that only attaches: exit %d %s", code, out)
	}
	policy := []string{"docker", "run", "--policy", `{"mode":"custom","allowed_domains":["api.example.com"]}`, "--headers", `{"api.example.com":{"X-Key":"sk-outside"}}`}
	line := `curl -sS https://api.example.com/ >/dev/null && echo reached; curl -sS https://www.example.com/ || echo refused $?; cat; cat /proc/1/environ; env; exit 7`
	out, errout, status := d.gateway("typed\n", append(policy, "--rm", "-i", "--name", "agent", "curl", "sh", "-c", line)...)
	if status != 7 || !strings.Contains(out, "reached\n") || !strings.Contains(out, "refused 35\n") || !strings.Contains(out, "typed\n") || strings.Contains(out, "sk-outside") {
		t.Fatalf("exit %d\n%s%s", status, out, errout)
	}
	got, err := w.Net.Await(t.Context(), "api.example.com", 1, testnet.Of(testnet.Request))
	if err != nil || got[0].Header.Get("X-Key") != "sk-outside" {
		t.Errorf("the server got %+v %v", got, err)
	}
	if out, _ := w.GatewayCommand("box", "list"); strings.Contains(out, "agent") {
		t.Errorf("a container that was removed has a box:\n%s", out)
	}
	if out, errout, status := d.gateway("", "docker", "run", "--rm", "--entrypoint", "/usr/bin/id", "curl", "-u"); status != 0 || strings.TrimSpace(out) != "0" {
		t.Errorf("another entry point: exit %d\n%s%s", status, out, errout)
	}
	for _, flags := range [][]string{{"--privileged"}, {"--network", "host"}, {"--net=bridge"}, {"--cap-add", "NET_ADMIN"}, {"--pid", "host"}, {"-p", "80:80"}, {"--device", "/dev/vda"}, {"--security-opt", "systempaths=unconfined"}, {"-v", "/proc/sys:/x"}, {"-v", "/sys:/x"}, {"-v", d.dir + "/sock:/docker.sock"}} {
		if flags[0] == "-v" {
			link := filepath.Join(d.dir, "docker.sock")
			_ = os.Link(filepath.Join(d.dir, "sock"), link)
			flags = []string{"-v", link + ":/var/run/docker.sock"}
		}
		if out, errout, status := d.gateway("", append(append([]string{"docker", "run", "--rm"}, flags...), "curl", "id")...); status == 0 {
			t.Errorf("%v: it runs\n%s%s", flags, out, errout)
		}
	}
	d.imageThatIsReady()
	if out, err := d.output(nil, "ps", "--all", "--quiet"); err != nil || out != "" {
		t.Errorf("containers are left: %s %v", out, err)
	}
}

// imageThatIsReady runs an image committed from a container that has run, with that container's readiness files: a new
// container does not take them for its own, and waits.
func (d *docker) imageThatIsReady() {
	d.w.T.Helper()
	script := []string{"sh", "-c", `for f in /.boxgate-ready*; do echo ready "$f"; done; cat /etc/ssl/certs/ca-certificates.crt`}
	first, errout, status := d.gateway("", append([]string{"docker", "run", "--name", "first", "curl"}, script...)...)
	if status != 0 || strings.Count(first, "ready ") != 1 {
		d.w.T.Fatalf("exit %d %s%s", status, first[:min(len(first), 300)], errout)
	}

	if out, err := d.output(nil, "commit", "--change", `ENTRYPOINT ["/usr/bin/env"]`, "first", "ready"); err != nil {
		d.w.T.Fatal(out, err)
	}
	second, errout, status := d.gateway("", append([]string{"docker", "run", "--rm", "ready"}, script...)...)
	if status != 0 || strings.Count(second, "ready ") != 2 {
		d.w.T.Errorf("an image with the file of another container: exit %d %s%s", status, second[:min(len(second), 300)], errout)
	}
	if err := d.run("rm", "--force", "first"); err != nil {
		d.w.T.Fatal(err)
	}
}

// TestDockerRunInTheBackground: the container is attached again when Docker restarts it, and waits for that.
func TestDockerRunInTheBackground(t *testing.T) {
	t.Parallel()
	w, d := dockerWorld(t)
	t.Cleanup(func() { _ = d.run("rm", "--force", "agent") })
	id, errout, status := d.gateway("", "docker", "run", "--policy", `{"mode":"custom","allowed_domains":["www.example.com"]}`, "-d", "--name", "agent", "--stop-signal", "KILL",
		"curl", "sh", "-c", "curl -sS https://www.example.com/ >/dev/null && echo reached; sleep 1000")
	if status != 0 || len(strings.TrimSpace(id)) != 64 {
		t.Fatalf("exit %d\n%s%s", status, id, errout)
	}
	reached := func(times int) {
		t.Helper()
		w.Until("its command reaches what it may", func() bool {
			out, err := d.output(nil, "logs", "agent")
			return err == nil && strings.Count(out, "reached") == times
		})
	}
	reached(1)
	if err := d.run("restart", "--time", "0", "agent"); err != nil {
		t.Fatal(err)
	}
	reached(2)
}

// TestAttachInstallsTheCA: in a running container, removed from its networks after confirmation.
func TestAttachInstallsTheCA(t *testing.T) {
	t.Parallel()
	w, d := dockerWorld(t)
	t.Cleanup(func() { _ = d.run("rm", "--force", "agent") })
	if out, err := d.output(nil, "network", "create", "team"); err != nil {
		t.Fatal(out)
	}
	if out, err := d.output(nil, "run", "--detach", "--stop-signal", "KILL", "--network", "team", "--name", "agent", "curl", "sleep", "1000"); err != nil {
		t.Fatal(out)
	}
	attach := []string{"box", "attach", "--container", "agent", "--name", "agent", "--install-ca", "--policy", "allow-all", "--headers", `{"api.example.com":{"X-Key":"sk-outside"}}`}
	if out, errout, status := d.gateway("", attach...); status != 1 || !strings.Contains(errout, "--disconnect") {
		t.Errorf("attached beside its network: exit %d\n%s%s", status, out, errout)
	}
	if out, errout, status := d.gateway("", append(attach, "--disconnect")...); status != 0 {
		t.Fatalf("exit %d\n%s%s", status, out, errout)
	}
	if out, err := d.output(nil, "exec", "agent", "curl", "-sS", "https://api.example.com/"); err != nil {
		t.Errorf("a new process in it: %v %s", err, out)
	}
	got, err := w.Net.Await(t.Context(), "api.example.com", 1, testnet.Of(testnet.Request))
	if err != nil || got[0].Header.Get("X-Key") != "sk-outside" {
		t.Errorf("the server got %+v %v", got, err)
	}
}

// TestReloadRenewsRootsInContainers: a reload with another root adds it to a running container in which the CA of its box is
// installed, and to no other one.
func TestReloadRenewsRootsInContainers(t *testing.T) {
	t.Parallel()
	w, d := dockerWorld(t)
	for name, more := range map[string]string{"agent": "--install-ca", "plain": "--disconnect"} {
		t.Cleanup(func() { _ = d.run("rm", "--force", name) })
		if out, err := d.output(nil, "run", "--detach", "--stop-signal", "KILL", "--network", "none", "--name", name, "curl", "sleep", "1000"); err != nil {
			t.Fatal(out)
		}
		if out, errout, status := d.gateway("", "box", "attach", "--container", name, "--name", name, "--policy", "allow-all", more); status != 0 {
			t.Fatalf("exit %d\n%s%s", status, out, errout)
		}
	}
	roots := func(name string) int {
		out, err := d.output(nil, "exec", name, "cat", "/etc/ssl/certs/ca-certificates.crt")
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.Count(out, "BEGIN CERTIFICATE")
	}
	agent, plain := roots("agent"), roots("plain")
	root, _ := launchertest.Certificate(t, pkix.Name{CommonName: "another root"}, nil, nil)
	file := filepath.Join(w.Dir, "another.pem")
	cfg, err := config.Load(w.Config, nil)
	cfg.Proxy.UpstreamCAFiles = append(cfg.Proxy.UpstreamCAFiles, file)
	data, yamlErr := yaml.Marshal(cfg)
	if err := errors.Join(err, yamlErr, os.WriteFile(file, root, 0o600), os.WriteFile(w.Config, data, 0o600)); err != nil {
		t.Fatal(err)
	}
	cmd := w.Command(t.Context(), "reload", "--json")
	cmd.Env = append(cmd.Env, "DOCKER_HOST=unix://"+d.dir+"/sock", "HOME="+d.dir, "PATH="+dockerRoot+"/usr/bin:/usr/bin:/bin")
	var out, errout strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errout
	if err := w.Net.Gateway().Start(cmd); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	var done struct{ PID int }
	if jsonErr := json.Unmarshal([]byte(out.String()), &done); err != nil || jsonErr != nil || done.PID == 0 || errout.Len() > 0 {
		t.Fatalf("%v %v\n%s%s", err, jsonErr, &out, &errout)
	}
	harness.EndLater(t, done.PID)
	if got := roots("agent"); got != agent+1 {
		t.Errorf("the container trusts %d roots, not one more than %d", got, agent)
	}
	if got := roots("plain"); got != plain {
		t.Errorf("a container without the CA trusts %d roots, not %d", got, plain)
	}
}

// TestAttackContainerLeadsTheCAAstray: by a link from its store to a file of the host, in a mounted directory.
func TestAttackContainerLeadsTheCAAstray(t *testing.T) {
	t.Parallel()
	w, d := dockerWorld(t)
	t.Cleanup(func() { _ = d.run("rm", "--force", "agent") })
	volume := filepath.Join(d.dir, "volume")
	file := filepath.Join(volume, "file")
	if err := os.Mkdir(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("of the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := d.output(nil, "run", "--detach", "--stop-signal", "KILL", "--network", "none", "--volume", volume+":/mnt", "--name", "agent", "curl", "sleep", "1000"); err != nil {
		t.Fatal(out)
	}
	pid, err := d.output(nil, "inspect", "--format", "{{.State.Pid}}", "agent")
	if err != nil {
		t.Fatal(pid)
	}
	store := "/proc/" + pid + "/root/etc/ssl/certs/ca-certificates.crt"
	if err := errors.Join(os.Remove(store), os.Symlink("/mnt/file", store)); err != nil {
		t.Fatal(err)
	}
	_, _, _ = d.gateway("", "box", "attach", "--container", "agent", "--name", "agent", "--install-ca", "--policy", "allow-all")
	data, err := os.ReadFile(file)
	info, statErr := os.Stat(file)
	if err != nil || statErr != nil || string(data) != "of the host" || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of the host is %v %q", info, data)
	}
	if out, _ := w.GatewayCommand("box", "list"); !strings.Contains(out, "agent") {
		t.Errorf("the container was not attached:\n%s", out)
	}
}

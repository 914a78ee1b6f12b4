package launchers

import (
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/launcher/launchertest"
)

// countRoots is a shell line that counts the certificates that programs of a container trust.
const countRoots = `grep -c BEGIN "$SSL_CERT_FILE"`

// trusted returns the number of certificates that new programs of a container trust, as text.
func (c *container) trusted() string {
	c.w.T.Helper()
	out, code := c.call("exec", c.id, "sh", "-c", countRoots)
	if code != 0 {
		c.w.T.Fatalf("exec in %s: %d %s", c.id, code, out)
	}
	return strings.TrimSpace(out)
}

// member starts a container that joins the network of another one.
func (c *container) member(id, line string) *container {
	c.w.T.Helper()
	var state struct{ Pid int }
	out, _ := c.call("state", c.id)
	if err := json.Unmarshal([]byte(out), &state); err != nil {
		c.w.T.Fatal(err, out)
	}
	m := c.newContainer(id, line, nil)
	namespaceAt(&m.spec, specs.NetworkNamespace, fmt.Sprintf("/proc/%d/ns/net", state.Pid))
	m.write()
	if out, code := m.call("create", "--bundle", m.bundle, m.id); code != 0 {
		c.w.T.Fatalf("create: %d %s", code, out)
	}
	m.start()
	return m
}

// withRoots writes a configuration with further roots in proxy.upstream_ca_files to a file.
func withRoots(w *harness.World, file string, names ...string) {
	w.T.Helper()
	cfg, err := config.Load(w.Config, nil)
	if err != nil {
		w.T.Fatal(err)
	}
	for _, name := range names {
		root, _ := launchertest.Certificate(w.T, pkix.Name{CommonName: name}, nil, nil)
		path := filepath.Join(w.T.TempDir(), "root.pem")
		if err := os.WriteFile(path, root, 0o600); err != nil {
			w.T.Fatal(err)
		}
		cfg.Proxy.UpstreamCAFiles = append(cfg.Proxy.UpstreamCAFiles, path)
	}
	data, err := yaml.Marshal(cfg)
	if err := errors.Join(err, os.WriteFile(file, data, 0o600)); err != nil {
		w.T.Fatal(err)
	}
}

// A reload adds a new root to all running containers of a box that trust its CA, in their store or in a mounted bundle. Ended containers are
// skipped.
func TestReloadRenewsRootsInContainersOfARuntime(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	e := newEngine(w, "runc", guarded(t)...)
	start := func(id, line string, change func(c *container)) *container {
		t.Helper()
		c := e.newContainer(id, line, nil)
		change(c)
		c.create()
		c.start()
		return c
	}
	agent := start("agent", asks, func(*container) {})
	fixed := start("fixed", "exec sleep 1000", func(c *container) {
		root := filepath.Join(c.bundle, "rootfs")
		if err := errors.Join(os.WriteFile(filepath.Join(root, "etc/resolv.conf"), nil, 0o644), unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
			t.Fatal(err)
		}
	})
	without := start("without", "grep -v BEGIN $SSL_CERT_FILE >/none; cat /none >$SSL_CERT_FILE; touch /removed; exec sleep 1000", func(*container) {})
	without.read("removed")
	member := agent.member("member", "exec sleep 1000")
	ended := agent.member("ended", "true")
	w.Until("a member of the box has ended", func() bool { out, _ := ended.call("state", ended.id); return strings.Contains(out, `"stopped"`) })
	isGuarded(t, agent.read("out"))
	before := map[*container]string{agent: agent.trusted(), fixed: fixed.trusted(), member: member.trusted()}
	withRoots(w, w.Config, "another root")
	var out, errout strings.Builder
	cmd := w.Command(t.Context(), "reload", "--json")
	cmd.Stdout, cmd.Stderr = &out, &errout
	if err := w.Net.Gateway().Start(cmd); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	var done struct{ PID int }
	if jsonErr := json.Unmarshal([]byte(out.String()), &done); err != nil || jsonErr != nil || done.PID == 0 || errout.Len() > 0 {
		t.Fatalf("%v %v\n%s%s", err, jsonErr, &out, &errout)
	}
	harness.EndLater(t, done.PID)
	for c, number := range before {
		if got := c.trusted(); got != next(t, number) {
			t.Errorf("%s trusts %s roots, not one more than %s", c.id, got, number)
		}
	}
	if out, _ := without.call("exec", without.id, "sh", "-c", countRoots); strings.TrimSpace(out) != "0" {
		t.Errorf("a container that has removed the CA has %s roots", out)
	}
	if out, code := w.GatewayCommand("box", "install-ca", boxesOf(w, without.id)[0]); code != 0 {
		t.Errorf("install-ca: %d %s", code, out)
	}
	if got := without.trusted(); got == "0" {
		t.Error("a container has no roots after install-ca")
	}
}

// next returns the number after one that is written as text.
func next(t *testing.T, number string) string {
	t.Helper()
	n, err := strconv.Atoi(number)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(n + 1)
}

// The CA is not written to a directory of the host that a container has made its root directory, though its user may not write there.
func TestAttackContainerChangesItsRoot(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	e := newEngine(w, "runc", guarded(t)...)
	volume := t.TempDir()
	store := filepath.Join(volume, "etc/ssl/certs/ca-certificates.crt")
	if err := errors.Join(os.Mkdir(filepath.Join(volume, "old"), 0o755), os.MkdirAll(filepath.Dir(store), 0o755), os.WriteFile(store, []byte("of the host"), 0o600)); err != nil {
		t.Fatal(err)
	}
	const line = `exec 3>/moved; sleep 1000 & exec unshare --user --map-root-user --mount sh -c 'sleep 1000 & mount --rbind /volume /volume && cd /volume && pivot_root . old && echo done >&3; wait' 2>&3`
	c := e.newContainer("moves", line, nil)
	c.spec.Mounts = append(c.spec.Mounts, specs.Mount{Destination: "/volume", Type: "bind", Source: volume, Options: []string{"rbind", "rprivate"}})
	c.spec.Process.User = specs.User{UID: 1000, GID: 1000} // one without CAP_SETFCAP cannot map root
	c.write()
	if err := os.Chmod(filepath.Join(c.bundle, "rootfs"), 0o777); err != nil {
		t.Fatal(err)
	}
	box := c.create()
	c.start()
	w.Until("the container has another root", func() bool {
		text, err := os.ReadFile(filepath.Join(c.bundle, "upper", "moved"))
		if err == nil && len(text) > 0 && !strings.Contains(string(text), "done") {
			t.Fatalf("the container cannot change its root: %s", text)
		}
		return err == nil && len(text) > 0
	})
	if out, code := w.GatewayCommand("box", "install-ca", box); code == 0 || !strings.Contains(out, "another root directory") {
		t.Errorf("install-ca: %d %s", code, out)
	}
	if data, err := os.ReadFile(store); err != nil || string(data) != "of the host" {
		t.Errorf("the file of the host is %q %v", data, err)
	}
	if left, err := filepath.Glob(filepath.Join(volume, "etc", "*")); err != nil || len(left) != 1 {
		t.Errorf("the directory of the host has %v", left)
	}
}

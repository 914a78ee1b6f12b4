package main

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/internal/lab"
	"boxgate/preflight"
)

// check runs `gateway check` where the gateway would run, and returns what is lacking.
func (w *world) check() map[string][]string {
	w.t.Helper()
	cmd := w.Command(w.t.Context(), "check", "--json", "--config", w.Config)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := w.Net.Gateway().Start(cmd); err != nil {
		w.t.Fatal(err)
	}
	failed := cmd.Wait() != nil
	var findings []struct {
		What, Error string
		OK          bool
	}
	if err := json.Unmarshal([]byte(out.String()), &findings); err != nil {
		w.t.Fatalf("%v: %s%s", err, out.String(), errs.String())
	}
	lacks := map[string][]string{}
	for _, f := range findings {
		if !f.OK {
			lacks[f.What] = append(lacks[f.What], f.Error)
		}
	}
	if failed != (len(lacks) > 0) {
		w.t.Errorf("failed is %v with %v", failed, lacks)
	}
	return lacks
}

func TestCheckPassesWhatServes(t *testing.T) {
	t.Parallel()
	w := stoppedWorld(t, lab.Options{})
	if lacks := w.check(); len(lacks) > 0 {
		t.Error(lacks)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Error(err)
	}
}

// A check looks and leaves nothing: no directory for the admin socket, and the socket of a gateway that was killed stays.
func TestCheckChangesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for socket, want := range map[string]string{
		filepath.Join(dir, "not", "there", "admin.sock"): "",
		filepath.Join(dir, "stale.sock"):                 "",
		filepath.Join(dir, "file"):                       "is no socket",
		filepath.Join(dir, "file", "admin.sock"):         "no directory",
	} {
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(socket, "stale.sock") {
			ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			ln.SetUnlinkOnClose(false)
			ln.Close()
		}
		w := stoppedWorld(t, lab.Options{Change: func(c *config.Config) { c.Admin.Socket = socket }})
		if got := strings.Join(w.check()["listeners"], ""); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", socket, got, want)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "not")); err == nil {
		t.Error("the check made a directory")
	}
	if _, err := os.Lstat(filepath.Join(dir, "stale.sock")); err != nil {
		t.Error("the check removed a socket")
	}
}

// Whatever serve would refuse, check finds, all of it at once; and serve refuses it before it changes anything.
func TestCheckFindsWhatServeRefuses(t *testing.T) {
	t.Parallel()
	notPEM := filepath.Join(t.TempDir(), "not.pem")
	if err := os.WriteFile(notPEM, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := stoppedWorld(t, lab.Options{Change: func(c *config.Config) {
		c.DNS.Upstreams = []string{"a b", "192.0.2.53", "x/y"}
		c.Proxy.UpstreamCAFiles = []string{"/nonexistent/ca.pem", notPEM}
		c.Ingress.TLS = config.TLS{Mode: "files", Cert: "/nonexistent/cert.pem", Key: "/nonexistent/key.pem"}
		c.Ingress.HTTPS, c.Ingress.HTTP, c.Metrics.Listen = "203.0.113.99:443", "203.0.113.98:80", "203.0.113.97:9600"
		c.Launcher.Images = map[string]string{"default": "/nonexistent/rootfs", "other": "Not A Reference"}
		c.Launcher.ImageDir = notPEM
		c.Network.PoolV4 = "192.0.2.0/24" // the lab's own network
	}})
	lacks := w.check()
	for what, want := range map[string][]string{
		"resolvers":                  {`"a b"`, `"x/y"`},
		"roots of upstreams":         {"/nonexistent/ca.pem", notPEM},
		"certificate of public URLs": {"/nonexistent/cert.pem"},
		"image /nonexistent/rootfs":  {"launcher.images: default"},
		"other images":               {"launcher.images: other"},
		"id-mapped mounts":           {"is no directory"},
		"pools":                      {"network.pool_v4: the pool 192.0.2.0/24 overlaps 192.0.2."},
		"listeners":                  {"metrics.listen", "ingress.https", "ingress.http"},
	} {
		if len(lacks[what]) != len(want) {
			t.Errorf("%s: %q, want %q", what, lacks[what], want)
			continue
		}
		for i := range want {
			if !strings.Contains(lacks[what][i], want[i]) {
				t.Errorf("%s: %q, want %q", what, lacks[what][i], want[i])
			}
		}
	}
	addresses := func() string {
		out, err := w.Net.Gateway().Run(t.Context(), "sh", "-c", "ip addr; ip rule; ip route")
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(out, " tentative", "") // a link-local address settles by itself
	}
	before := addresses()
	if err := w.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "overlaps") {
		t.Errorf("serve: %v", err)
	}
	if after := addresses(); after != before {
		t.Errorf("serve changed the network:\n%s\nbefore:\n%s", after, before)
	}
}

// A firewall of the host that drops what it does not know is named with what allows boxes.
func TestCheckFindsOtherProgramsRules(t *testing.T) {
	t.Parallel()
	w := stoppedWorld(t, lab.Options{})
	if out, err := w.Net.Gateway().Run(t.Context(), "nft",
		"table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }"); err != nil {
		t.Fatal(err, out)
	}
	lacks := w.check()
	if got := strings.Join(lacks["rules of other programs"], ""); len(lacks) != 1 || !strings.Contains(got, "iptables -I FORWARD") {
		t.Error(lacks)
	}
}

func TestOneMistakeDoesNotHideTheNext(t *testing.T) {
	file := filepath.Join(t.TempDir(), "boxgate.yaml")
	if err := os.WriteFile(file, []byte(`
stat_dir: /x
admin: {socket: "", listen: ""}
network: {pool_v4: 0.0.0.0/0, pool_v6: "2000::/3"}
ingress: {domain: "a b"}
launcher: {run_dir: run, image_dir: images, idle_timeout: -5m}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := config.Load(file, []string{"BOXGATE_LOG_LEVEL=z", "BOXGATE_NONE=1"})
	if err == nil {
		t.Fatal("accepted")
	}
	all := preflight.Lacks(err)
	for _, want := range []string{
		`unknown key "stat_dir"`, "BOXGATE_NONE", "log.level", "admin: neither", `network.pool_v4: "0.0.0.0/0" is too large`,
		`network.pool_v6: "2000::/3" is too large`, "ingress.domain", "launcher.run_dir", "launcher.image_dir",
		"launcher.idle_timeout",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not said", want)
		}
	}
	if len(all) != 10 {
		t.Errorf("%d mistakes: %v", len(all), all)
	}
}

// What keeps a source from giving its value is found without starting anything.
func TestCheckFindsBrokenSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := errors.Join(os.WriteFile(open, []byte("sk-canary"), 0o644), os.Chmod(open, 0o644)); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(dir, "good")
	if err := os.WriteFile(good, []byte("sk-canary\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := `
secrets:
  a: {file: /nonexistent/key}
  b: {file: ` + open + `}
  c: {env: SECRETS_TEST_NOT_SET_EITHER}
  d: {command: [/nonexistent/program]}
  e: {file: ` + good + `}
  f: {command: [cat, ` + good + `]}
  g: {value: sk-canary}
`
	path := filepath.Join(dir, "boxgate.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(cfg.Secrets.File, 0o644); err != nil {
		t.Fatal(err)
	}
	all := preflight.Lacks(checkSecrets(t.Context(), cfg))
	want := []string{
		"secrets.a: file /nonexistent/key: no such file", "secrets.b: file " + open + ": everybody may read",
		"secrets.c: variable SECRETS_TEST_NOT_SET_EITHER: it is not set", "secrets.d: command /nonexistent/program: no such file",
		"secrets: everybody may read or write " + cfg.Secrets.File,
	}
	if len(all) != len(want) {
		t.Fatalf("%d lacks: %v", len(all), all)
	}
	for i := range want {
		if got := all[i].Error(); !strings.HasPrefix(got, want[i]) || strings.Contains(got, "canary") {
			t.Errorf("%q, want %q", got, want[i])
		}
	}
}

// A check that only warns passes, and shows what it warns of.
func TestCheckPassesWithWarnings(t *testing.T) {
	t.Parallel()
	w := stoppedWorld(t, lab.Options{Change: func(c *config.Config) { c.Limits.Connections = config.MostOfAnything }})
	if lacks := w.check(); len(lacks) > 0 {
		t.Errorf("a warning is a lack: %v", lacks)
	}
	cmd := w.Command(t.Context(), "check", "--config", w.Config)
	var out strings.Builder
	cmd.Stdout = &out
	if err := w.Net.Gateway().Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "warns  shares of boxes") {
		t.Errorf("%v: %s", err, out.String())
	}
}

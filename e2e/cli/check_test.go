package cli

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// check runs `gateway check` in the gateway's namespace and returns the failed findings.
func check(w *harness.World) map[string][]string {
	w.T.Helper()
	cmd := w.Command(w.T.Context(), "check", "--json", "--config", w.Config)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := w.Net.Gateway().Start(cmd); err != nil {
		w.T.Fatal(err)
	}
	failed := cmd.Wait() != nil
	var findings []struct {
		What, Error string
		OK          bool
	}
	if err := json.Unmarshal([]byte(out.String()), &findings); err != nil {
		w.T.Fatalf("%v: %s%s", err, out.String(), errs.String())
	}
	lacks := map[string][]string{}
	for _, f := range findings {
		if !f.OK {
			lacks[f.What] = append(lacks[f.What], f.Error)
		}
	}
	if failed != (len(lacks) > 0) {
		w.T.Errorf("failed is %v with %v", failed, lacks)
	}
	return lacks
}

func TestCheckPassesWhatServes(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	if lacks := check(w); len(lacks) > 0 {
		t.Error(lacks)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Error(err)
	}
}

// A host that cannot build the image can still attach boxes: the check warns, the gateway starts, and launching a box
// is refused with a fix.
func TestHostThatCannotBuildTheImage(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	configured(func(c *config.Config) { c.Launcher.ImageDir = filepath.Join(w.Dir, "images") })(t, w)
	if out, err := w.Net.Gateway().Run(t.Context(), w.Self, "check", "--config", w.Config); err != nil || !strings.Contains(out, "gateway image pull default") {
		t.Errorf("%v: the check does not warn about the missing image:\n%s", err, out)
	}
	runc, err := exec.LookPath("runc")
	dir := t.TempDir()
	must(t, err, os.Symlink(runc, filepath.Join(dir, "runc")))
	wrapped("env PATH="+dir)(t, w)
	if lacks := check(w); len(lacks) > 0 {
		t.Errorf("the check fails: %v", lacks)
	}
	if out, err := w.Net.Gateway().Run(t.Context(), w.Self, "check", "--config", w.Config); err != nil || !strings.Contains(out, "apt-get install mmdebstrap") {
		t.Errorf("%v: the check does not warn:\n%s", err, out)
	}
	must(t, w.Start(t.Context()))
	if out, code := w.GatewayCommand("box", "create"); code != 1 || !strings.Contains(out, "apt-get install mmdebstrap") {
		t.Errorf("a box is created: exit %d %s", code, out)
	}
	if out, code := w.GatewayCommand("box", "list"); code != 0 || strings.Contains(out, "error") {
		t.Errorf("after that: exit %d %s", code, out)
	}
}

// A check leaves no traces: it creates no directory for the admin socket, and keeps the socket of a killed gateway.
func TestCheckChangesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for socket, want := range map[string]string{
		filepath.Join(dir, "not", "there", "admin.sock"): "",
		filepath.Join(dir, "stale.sock"):                 "",
		filepath.Join(dir, "file"):                       "is not a socket",
		filepath.Join(dir, "file", "admin.sock"):         "not a directory",
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
		w := harness.NewStopped(t, lab.Options{Change: func(c *config.Config) { c.Admin.Socket = socket }})
		if got := strings.Join(check(w)["listeners"], ""); !strings.Contains(got, want) || (want == "") != (got == "") {
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

// The check finds all problems that serve would refuse, in one run, and serve refuses them before it changes anything.
func TestCheckFindsWhatServeRefuses(t *testing.T) {
	t.Parallel()
	notPEM := filepath.Join(t.TempDir(), "not.pem")
	if err := os.WriteFile(notPEM, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
		c.DNS.Upstreams = []string{"a b", "192.0.2.53", "x/y"}
		c.Proxy.UpstreamCAFiles = []string{"/nonexistent/ca.pem", notPEM}
		c.Ingress.TLS = config.TLS{Mode: "files", Cert: "/nonexistent/cert.pem", Key: "/nonexistent/key.pem"}
		c.Ingress.HTTPS, c.Ingress.HTTP, c.Metrics.Listen = "203.0.113.99:443", "203.0.113.98:80", "203.0.113.97:9600"
		c.Launcher.Images = map[string]string{"default": "/nonexistent/rootfs", "other": "Not A Reference"}
		c.Launcher.ImageDir = notPEM
		c.Network.PoolV4 = "192.0.2.0/24" // the lab's network
	}})
	lacks := check(w)
	for what, want := range map[string][]string{
		"resolvers":                 {`"a b"`, `"x/y"`},
		"upstream CA roots":         {"/nonexistent/ca.pem", notPEM},
		"public URL certificate":    {"/nonexistent/cert.pem"},
		"image /nonexistent/rootfs": {"launcher.images: default"},
		"other images":              {"launcher.images: other"},
		"id-mapped mounts":          {"is not a directory"},
		"pools":                     {"network.pool_v4: the pool 192.0.2.0/24 overlaps 192.0.2."},
		"listeners":                 {"metrics.listen", "ingress.https", "ingress.http"},
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
		return strings.ReplaceAll(out, " tentative", "") // the kernel completes a link-local address later
	}
	before := addresses()
	if err := w.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "overlaps") {
		t.Errorf("serve: %v", err)
	}
	if after := addresses(); after != before {
		t.Errorf("serve changed the network:\n%s\nbefore:\n%s", after, before)
	}
}

// A host firewall that drops unknown traffic is reported with the rule that allows boxes.
func TestCheckFindsOtherProgramsRules(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	if out, err := w.Net.Gateway().Run(t.Context(), "nft",
		"table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }"); err != nil {
		t.Fatal(err, out)
	}
	lacks := check(w)
	if got := strings.Join(lacks["other firewall rules"], ""); len(lacks) != 1 || !strings.Contains(got, "iptables -I FORWARD") {
		t.Error(lacks)
	}
}

// A check with warnings only passes, and prints the warnings.
func TestCheckPassesWithWarnings(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{Change: func(c *config.Config) { c.Limits.Connections = config.MaxCount }})
	if lacks := check(w); len(lacks) > 0 {
		t.Errorf("a warning is a lack: %v", lacks)
	}
	cmd := w.Command(t.Context(), "check", "--config", w.Config)
	var out strings.Builder
	cmd.Stdout = &out
	if err := w.Net.Gateway().Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "warning  limits of boxes") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// IPv6 is off on the host: the gateway and `gateway check` report it, and leave it off.
func TestAHostWithoutIPv6IsNamedAndLeftAlone(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	for _, where := range []string{"all", "lo"} {
		if out, err := w.Net.Gateway().Run(t.Context(), "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/"+where+"/disable_ipv6"); err != nil {
			t.Fatal(err, out)
		}
	}
	state := func() string {
		t.Helper()
		out, err := w.Net.Gateway().Run(t.Context(), "sh", "-c", "ip -4 addr show dev lo; ip rule; nft list tables; ls "+filepath.Join(w.Dir, "state")+" 2>&1 || true")
		if err != nil {
			t.Fatal(err, out)
		}
		return out
	}
	before := state()
	if lacks := check(w); len(lacks) != 1 || len(lacks["IPv6"]) != 1 || !strings.Contains(lacks["IPv6"][0], "sysctl -w net.ipv6.conf.all.disable_ipv6=0") {
		t.Errorf("the check says %q", lacks)
	}
	for range 2 {
		if err := w.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "IPv6 is off") {
			t.Errorf("the start says: %v", err)
		}
		w.Kill()
	}
	if now := state(); now != before {
		t.Errorf("before\n%s\nafter\n%s", before, now)
	}
}

// A check next to a running gateway, and one of a state directory that other users may enter.
func TestCheckNamesWhatServeWouldFailOn(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	if lacks := check(w); len(lacks) > 0 {
		t.Errorf("of the gateway that runs: %q", lacks)
	}
	cmd := w.Command(t.Context(), "serve", "--config", w.Config)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := w.Net.Gateway().Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "already running") {
		t.Errorf("a second one: %v %s", err, out.String())
	}
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(w.Dir, "state")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if lacks := check(w); len(lacks) != 1 || !strings.Contains(strings.Join(lacks["state directory"], ""), "chmod 700") {
		t.Errorf("of a state directory of mode 0755: %q", lacks)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if lacks := check(w); len(lacks) > 0 {
		t.Errorf("then: %q", lacks)
	}
}

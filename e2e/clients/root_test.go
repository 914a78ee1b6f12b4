package clients

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// shopSources makes apt use the shop, and only it.
const shopSources = "deb [trusted=yes] https://" + shopHost + "/apt ./"

// install are the lines with which a user installs the shop's package. SUDO is the way to root.
const install = `echo '` + shopSources + `' | SUDO tee /etc/apt/sources.list >/dev/null && SUDO apt-get -qq update && SUDO apt-get -qq -y install tiny >/dev/null && tiny`

// newRootBox creates a box of the debian image in a world, with the shop as the only host that it reaches.
func newRootBox(t *testing.T, root bool) (*harness.World, *shop, string) {
	t.Helper()
	w := harness.NewWorld(t, func(c *config.Config) {
		c.Launcher.Images["debian"], c.Launcher.Images["min"], c.Launcher.Root = "debian", "debian-min", root
	})
	s := openShop(t, w)
	return w, s, w.Create(map[string]any{
		"runtime": "debian", "network_policy": harness.Custom(shopHost), "attach_headers": map[string]any{shopHost: map[string]string{"X-Key": harness.Canary}},
	})
}

// shownRoot reports whether the API shows a box as one whose code may become its root.
func shownRoot(t *testing.T, w *harness.World, box string) bool {
	t.Helper()
	out, code := w.GatewayCommand("box", "get", box)
	var shown struct{ Root bool }
	if err := json.Unmarshal([]byte(out), &shown); err != nil || code != 0 {
		t.Fatalf("%d, %v: %s", code, err, out)
	}
	return shown.Root
}

// TestSudoInstallsPackages: with launcher.root, the user of a box installs packages, adds users and changes passwords by sudo, over the
// box's network and with its certificates. Its root reaches no more than it does.
func TestSudoInstallsPackages(t *testing.T) {
	t.Parallel()
	w, s, box := newRootBox(t, true)
	if !shownRoot(t, w, box) {
		t.Error("box get does not show it")
	}
	if out, _ := w.GatewayCommand("check", "--config", w.Config); !strings.Contains(out, "root in boxes, by launcher.root") {
		t.Errorf("gateway check does not show it: %s", out)
	}
	if out := w.MustSh(box, strings.ReplaceAll(install, "SUDO", "sudo")); !strings.HasSuffix(out, "welcome\n") {
		t.Errorf("%q", out)
	}
	if !s.requested("/apt/tiny.deb") {
		t.Error("the package was not fetched with the key")
	}
	w.MustSh(box, `sudo useradd -m maria && echo maria:First-Pass-1 | sudo chpasswd && echo First-Pass-1 | su -c true maria &&
		[ "$(sudo -u maria id -un)" = maria ] && sudo curl -sS https://`+shopHost+`/seen/sudo >/dev/null && sudo node -e 'require("https").get("https://`+shopHost+`/seen/node", r => r.resume())'`)
	for _, line := range []string{
		"sudo curl -sS -m 5 https://denied.example.com", "sudo curl -sS -m 5 http://169.254.169.254/", "sudo ip route add default dev lo", "sudo ip link set eth0 down",
		"sudo ip addr add 203.0.113.250/32 dev eth0", "sudo curl -sS -m 5 --interface 203.0.113.250 https://" + shopHost, "sudo mount -t tmpfs none /mnt", "sudo unshare -n true",
		"sudo nsenter -t 1 -n ip link set eth0 down", "sudo sysctl -w net.ipv4.ip_forward=1",
	} {
		if out, code := w.Sh(box, line); code == 0 {
			t.Errorf("%s: %s", line, out)
		}
	}
	if out, code := w.Sh(box, "sudo grep -rls '"+harness.Canary+"' /etc /root /var /workspace /tmp; sudo cat /proc/[0-9]*/environ 2>/dev/null | grep -a -c '"+harness.Canary+"'"); strings.TrimSpace(out) != "0" {
		t.Errorf("root finds the secret: %d, %s", code, out)
	}
	if nightly.Enabled() {
		w.IsTight(box)
	}
}

// TestExecAsRoot: a caller of the API runs commands as the box's root, with or without launcher.root, and the box's user cannot
// become it without.
func TestExecAsRoot(t *testing.T) {
	t.Parallel()
	w, _, box := newRootBox(t, false)
	if shownRoot(t, w, box) {
		t.Error("box get shows root")
	}
	if out, code := w.GatewayCommand("box", "exec", "--user", "root", box, "--", "sh", "-c", strings.ReplaceAll(install, "SUDO", "")); code != 0 || !strings.HasSuffix(out, "welcome\n") {
		t.Errorf("%d: %s", code, out)
	}
	if out, code := w.GatewayCommand("box", "exec", "-i", "--user", "33:34", box, "--", "sh", "-c", "id -u; id -g"); code != 0 || out != "33\n34\n" {
		t.Errorf("a session: %d: %s", code, out)
	}
	if out, code := w.Sh(box, "sudo -n id -u"); code == 0 || !strings.Contains(out, "no new privileges") {
		t.Errorf("sudo: %d: %s", code, out)
	}
	for _, user := range []string{"maria", "65536", "0:70000", "-1", "root:0", "root\n"} {
		var out bytes.Buffer
		if _, err := w.Client.Exec(t.Context(), box, api.ExecRequest{Command: []string{"true"}, User: user}, &out, &out); err == nil || !strings.Contains(err.Error(), "/user") {
			t.Errorf("%q: %v", user, err)
		}
	}
	// What the gateway itself runs as root is not a program of the box's user, which an image without git would find in PATH.
	without := w.Create(map[string]any{"runtime": "min"})
	w.MustSh(without, `mkdir -p .local/bin && printf '#!/bin/sh\nid -u >>/tmp/ran\n' >.local/bin/git && chmod +x .local/bin/git && git`)
	err := w.Client.Do(t.Context(), "PUT", api.BoxPath(without, "config", "git"), map[string]string{"git_user_name": "Maria"}, nil)
	if err == nil || !strings.Contains(err.Error(), "git cannot be configured") {
		t.Error(err)
	}
	if out := w.MustSh(without, "cat /tmp/ran"); out != "1000\n" {
		t.Errorf("git of the box's user has run as %q", out)
	}
	if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(box, "config", "git"), map[string]string{"git_user_name": "Maria"}, nil); err != nil {
		t.Error(err)
	}
	if out := w.MustSh(box, "git config user.name"); out != "Maria\n" {
		t.Errorf("%q", out)
	}
}

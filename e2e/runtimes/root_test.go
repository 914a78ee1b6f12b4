package runtimes

import (
	"bytes"
	"testing"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/launcher/oci"
)

// debianBox returns a box with sudo.
func debianBox(w *harness.World) string {
	w.T.Helper()
	return w.Create(map[string]any{"runtime": "debian", "network_policy": harness.Custom("*.example.com")})
}

// asRoot runs a line as the box's root, by the API.
func asRoot(t *testing.T, w *harness.World, box, line string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	code, err := w.Client.Exec(t.Context(), box, api.ExecRequest{Command: []string{"sh", "-c", line}, User: "root"}, &out, &out)
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), code
}

// raise makes a set-user-ID program of root's, and prints the user that it becomes.
const raise = "install -m 4755 $(command -v id) /usr/local/bin/rise"

// Under each runtime, code in the box becomes the box's root by set-user-ID programs with launcher.root, and has neither more
// capabilities nor another network then. Without it, such programs have no effect, though the API's caller may be root.
func TestRootUnderEachRuntime(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *harness.World, _ *oci.Runtime) {
		box := debianBox(w)
		if out, code := asRoot(t, w, box, "id -u && useradd -m maria && "+raise); out != "0\n" || code != 0 {
			t.Errorf("by the API: %d, %s", code, out)
		}
		if out, code := w.Sh(box, "rise -u; sudo -n id -u"); code == 0 || len(out) < 5 || out[:5] != "1000\n" {
			t.Errorf("without launcher.root: %d, %s", code, out)
		}
	}, debianImage)
	each(t, func(t *testing.T, w *harness.World, _ *oci.Runtime) {
		box := debianBox(w)
		if out := w.MustSh(box, "sudo -n id -u && sudo -n sh -c '"+raise+"' && rise -u && sudo -n useradd -m maria && sudo -n -u maria id -un"); out != "0\n0\nmaria\n" {
			t.Errorf("with launcher.root: %s", out)
		}
		for _, line := range []string{
			"sudo -n mount -t tmpfs none /mnt", "sudo -n ip link set lo down", "sudo -n ip route del default", "sudo -n python3 -c 'import socket; socket.socket(17, 3, 3)'",
			"sudo -n python3 -c 'import socket; socket.socket(2, 3, 1)'", "sudo -n curl -sS -m 5 https://evil.example.net", "sudo -n unshare -n true",
		} {
			if out, code := w.Sh(box, line); code == 0 {
				t.Errorf("%s: %s", line, out)
			}
		}
		if out, code := w.Sh(box, "sudo -n grep CapBnd /proc/self/status"); code != 0 || out != "CapBnd:\t00000000800405fb\n" {
			t.Errorf("%d, %s", code, out)
		}
	}, debianImage, func(c *config.Config) { c.Launcher.Root = true })
}

// debianImage names the image with sudo.
func debianImage(c *config.Config) { c.Launcher.Images["debian"] = "debian" }

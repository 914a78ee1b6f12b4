package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy/name"
)

func TestKilledGatewayLeavesTheBoxClosedAndPicksItUpAgain(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.SecretBox()
	w.MustSh(box, "curl -sS -o /dev/null https://api.example.com/before")
	// The box keeps trying, by name and by address, while no gateway is running.
	evil := w.V4("evil.example.net").String()
	w.MustSh(box, `cat > try.sh <<'EOF'
while :; do
  curl -k -s -m 2 -o /dev/null https://evil.example.net/; curl -k -s -m 2 -o /dev/null https://`+evil+`/
  curl -s -m 2 -o /dev/null http://`+evil+`/; curl -s -m 2 -o /dev/null http://169.254.169.254/
  curl -k -s -m 2 --resolve api.example.com:443:`+evil+` https://api.example.com/ >/dev/null && touch reached
  date +%s%N > tried
done
EOF
setsid sh try.sh >/dev/null 2>&1 &`)
	w.Kill()
	w.Net.Forget()
	awaitRounds(t, w, box, 2)
	w.NothingReached("evil.example.net")
	w.NothingReached("169.254.169.254")
	w.NothingReached("api.example.com")

	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	out := w.MustSh(box, "curl -sS https://api.example.com/after")
	harness.Contains(t, out, "GET /after")
	seen := w.Net.Received("api.example.com", testnet.Path("/after"))
	if len(seen) != 1 || seen[0].Header.Get("Authorization") != "Bearer "+harness.TestSecret {
		t.Errorf("after the restart the server received %+v", seen)
	}
	if _, code := w.Sh(box, "curl -sS https://evil.example.net/"); code != 35 {
		t.Errorf("after the restart curl exited with %d", code)
	}
	w.NothingReached("evil.example.net")
	w.Event(box, func(e audit.Event) bool { return e.Name == "evil.example.net" && e.Reason == name.ReasonNotAllowed })
}

// awaitRounds waits until the box's loop has run n times, by reading its file from the host.
func awaitRounds(t *testing.T, w *harness.World, box string, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var before string
	for n >= 0 {
		found, err := filepath.Glob(filepath.Join(w.Dir, "state", "boxes", box, "*", "workspace", "home", "tried"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if data, err := os.ReadFile(f); err == nil && len(data) > 0 && string(data) != before {
				before = string(data)
				n--
			}
		}
		select {
		case <-ctx.Done():
			t.Fatal("the box's loop does not run")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestBoxesOutliveACleanRestart(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "stays", "network_policy": harness.Custom("api.example.com")})
	w.MustSh(box, "setsid sleep 1000 >/dev/null 2>&1 & echo $! > pid")
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.MustSh("stays", "kill -0 $(cat pid)")
	w.MustSh("stays", "curl -k -sS -o /dev/null https://api.example.com/")
	if out, code := w.GatewayCommand("box", "list"); code != 0 || !strings.Contains(out, box) {
		t.Errorf("box list: %d %s", code, out)
	}
}

func TestDeletedBoxLeavesNothing(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	if out, code := w.GatewayCommand("box", "rm", box); code != 0 {
		t.Fatalf("box rm: %d %s", code, out)
	}
	if out, code := w.GatewayCommand("box", "get", box); code != 1 {
		t.Errorf("a deleted box is still there: %d %s", code, out)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(mounts, []byte(box)) {
		t.Error("mounts of the deleted box are left")
	}
	links, err := w.Net.Gateway().Run(t.Context(), "ip", "-o", "link")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(links, "bg") {
		t.Errorf("links are left: %s", links)
	}
}

func TestMistakesAreToldInOneSentenceBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	dir := t.TempDir()
	config := func(lines ...string) string {
		f, err := os.CreateTemp(dir, "*.yaml")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(strings.Join(lines, "\n")); err != nil {
			t.Fatal(err)
		}
		return f.Name()
	}
	base := []string{"state_dir: " + dir + "/state", "admin: {socket: " + dir + "/admin.sock, listen: \"\"}", "metrics: {listen: \"\"}"}
	off := "ingress: {https: \"\", http: \"\"}"
	for name, c := range map[string]struct {
		config string
		want   string
		change func(*exec.Cmd)
	}{
		"unknown key":     {config("stae_dir: /x"), `did you mean "state_dir"?`, nil},
		"no such file":    {filepath.Join(dir, "absent.yaml"), "name an existing file with --config", nil},
		"port in use":     {config(append(base, "ingress: {http: \"\", https: \""+busy.Addr().String()+"\"}")...), "is in use by another program", nil},
		"foreign address": {config(append(base, "ingress: {http: \"\", https: \"192.0.2.77:443\"}")...), "this machine has no address", nil},
		"missing runtime": {config(append(base, off, "launcher: {runtime: no-such-runtime}")...), "no-such-runtime is missing", nil},
		"not root": {config(append(base, off)...), "run it as root", func(c *exec.Cmd) {
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), executableForAll(t), "serve", "--config", c.config)
			if c.change != nil {
				makeReadable(t, dir, c.config)
				c.change(cmd)
			}
			out, err := cmd.CombinedOutput()
			if err == nil || cmd.ProcessState.ExitCode() != 1 {
				t.Fatalf("exit %d: %s", cmd.ProcessState.ExitCode(), out)
			}
			harness.Contains(t, string(out), c.want)
			if strings.Count(strings.TrimSpace(string(out)), "\n") > 0 {
				t.Errorf("more than one line: %s", out)
			}
			if _, err := os.Stat(dir + "/state"); err == nil {
				t.Error("the state directory was made")
			}
			if _, err := os.Stat(dir + "/admin.sock"); err == nil {
				t.Error("the admin socket was left")
			}
		})
	}
}

// executableForAll returns a copy of the gateway that any user may run.
func executableForAll(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "boxgate-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "gateway")
	// Copied by another process: a child that is being started could inherit a file that this process has open for
	// writing, which then could not be executed (ETXTBSY).
	if out, err := exec.CommandContext(t.Context(), "cp", harness.Gateway(), path).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func makeReadable(t *testing.T, dir, file string) {
	t.Helper()
	for path, mode := range map[string]os.FileMode{filepath.Dir(dir): 0o755, dir: 0o755, file: 0o644} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSecondGatewayOnTheSameStateIsRefused(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	cmd := w.Command(t.Context(), "serve")
	cmd.Env = append(cmd.Env, "BOXGATE_ADMIN_LISTEN=", "BOXGATE_METRICS_LISTEN=", "BOXGATE_INGRESS_HTTPS=", "BOXGATE_INGRESS_HTTP=")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatal("a second gateway started")
	}
	harness.Contains(t, string(out), "already running")
}

func TestFailedCreateLeavesNothing(t *testing.T) {
	t.Parallel()
	broken := t.TempDir() // its etc is a file
	if err := errors.Join(os.Mkdir(filepath.Join(broken, "usr"), 0o755), os.WriteFile(filepath.Join(broken, "etc"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	w := harness.NewWorld(t, func(c *config.Config) { c.Launcher.Images["broken"] = broken })
	err := w.Client.Do(t.Context(), "POST", "/v2/box", map[string]any{"runtime": "broken", "name": "x"}, nil)
	if err == nil {
		t.Fatal("a box of a broken image was created")
	}
	harness.Contains(t, err.Error(), "nothing of it is left")
	var boxes []any
	if err := w.Client.Get(t.Context(), "/v2/box", &boxes); err != nil || len(boxes) != 0 {
		t.Errorf("boxes: %v %v", boxes, err)
	}
	links, err := w.Net.Gateway().Run(t.Context(), "ip", "-o", "link")
	if err != nil || strings.Contains(links, "bg") {
		t.Errorf("links are left: %v %s", err, links)
	}
	// The name is free again.
	w.Create(map[string]any{"name": "x"})
}

func TestUnauthenticatedAdminIsRefused(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	stranger := api.NewClient(w.Socket, "wrong")
	if err := stranger.Get(t.Context(), "/v2/box", nil); err == nil {
		t.Error("a wrong key was accepted")
	}
	if info, err := os.Stat(w.Socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("admin socket: %v %v", info.Mode(), err)
	}
	box := w.Create(map[string]any{})
	for _, target := range []string{"10.200.0.1:8600", "127.0.0.1:8600", "10.200.0.1:9600", "10.200.0.1:443"} {
		if out, code := w.Sh(box, "curl -sS -k -m 3 http://"+target+"/healthz"); code == 0 {
			t.Errorf("the box reached %s: %s", target, out)
		}
	}
}

package packages

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/e2e/harness/confine"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// unit is the path of the service's unit.
const unit = "../../dist/boxgate.service"

// TestTheUnitIsValid: systemd accepts the whole unit, and rates its confinement better than that of a unit without any.
func TestTheUnitIsValid(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	// systemd-analyze requires the program to exist.
	there := filepath.Join(t.TempDir(), "boxgate.service")
	if err := os.WriteFile(there, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/gateway", "/bin/true")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", there).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
	const most = 76 // tenths
	if out, err := exec.Command("systemd-analyze", "security", "--offline=true", fmt.Sprintf("--threshold=%d", most), there).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, harness.Tail(string(out), 200))
	}
}

// TestTheUnitsConfinement: the gateway and boxes work under the unit's restrictions, and the restrictions apply.
func TestTheUnitsConfinement(t *testing.T) {
	t.Parallel()
	path, err := filepath.Abs(unit)
	if err != nil {
		t.Fatal(err)
	}
	w := harness.NewStopped(t, lab.Options{})
	w.Env = append(w.Env, harness.UnitVariable+"="+path)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	isConfined(t, w)

	box := w.SecretBox()
	entersBoxes(t, w, box)
	w.MustSh(box, "curl -sS -o /dev/null https://api.example.com/confined")
	if seen := w.Net.Received("api.example.com", testnet.Path("/confined")); len(seen) != 1 || seen[0].Header.Get("Authorization") != "Bearer "+harness.TestSecret {
		t.Errorf("the server received %+v", seen)
	}
	if _, code := w.Sh(box, "curl -sS https://evil.example.net/"); code != 35 {
		t.Errorf("a denied host: curl exited with %d", code)
	}
	w.SetPolicy(box, harness.Custom("plain.example.com"))
	w.MustSh(box, "curl -sS -o /dev/null http://plain.example.com/ && echo kept > file")
	mustDo(w, "POST", api.BoxPath(box, "pause"), nil)
	mustDo(w, "POST", api.BoxPath(box, "resume"), nil)
	var made struct{ ID string }
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "snapshots"), map[string]any{"name": "one"}, &made); err != nil {
		t.Fatal(err)
	}
	var copied struct{ ID string }
	if err := w.Client.Do(t.Context(), "POST", "/v2/box/from-snapshot", map[string]any{"snapshot_id": made.ID}, &copied); err != nil {
		t.Fatal(err)
	}
	if out := w.MustSh(copied.ID, "cat file; id -u; grep -c . /proc/self/status >/dev/null; python3 -c 'import ctypes,mmap; mmap.mmap(-1, 4096, prot=mmap.PROT_READ|mmap.PROT_WRITE|mmap.PROT_EXEC)'"); !strings.HasPrefix(out, "kept\n") {
		t.Errorf("the copy says %q", out)
	}
	attached := w.Attach(map[string]any{"network_policy": harness.Custom("plain.example.com")})
	w.MustSh(attached, "curl -sS -o /dev/null http://plain.example.com/")
	if said, code := w.GatewayCommand("box", "selftest", box); code != 0 {
		t.Errorf("the self-test: %d %s", code, harness.Tail(said, 2000))
	}

	// The next gateway takes over the kernel state: none of it was in a namespace of the service.
	w.Kill()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.MustSh(box, "curl -sS -o /dev/null http://plain.example.com/ && cat file")
	w.MustDelete(copied.ID)
	w.MustDelete(box)
}

// entersBoxes checks that the unit does not keep the gateway from entering boxes for commands: the runtime starts none.
// Its exec needs files in a directory.
func entersBoxes(t *testing.T, w *harness.World, box string) {
	t.Helper()
	files := filepath.Join(lab.RunDir(w.Dir), "exec")
	before, err := os.Stat(files)
	if err != nil {
		t.Fatal(err)
	}
	w.MustSh(box, "true")
	after, err := os.Stat(files)
	if err != nil {
		t.Fatal(err)
	}
	if !after.ModTime().Equal(before.ModTime()) {
		t.Error("the runtime started a command")
	}
	for _, line := range []string{"commands in boxes are started by the runtime", "a box cannot be entered"} {
		if strings.Contains(w.LogText(), line) {
			t.Errorf("the log has %q", line)
		}
	}
}

func mustDo(w *harness.World, method, path string, body any) {
	w.T.Helper()
	if err := w.Client.Do(w.T.Context(), method, path, body, nil); err != nil {
		w.T.Fatalf("%s %s: %v", method, path, err)
	}
}

// isConfined compares the gateway's /proc status with its unit.
func isConfined(t *testing.T, w *harness.World) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.Process.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		have[key] = strings.TrimSpace(value)
	}
	if have["NoNewPrivs"] != "1" || have["Seccomp"] != "2" {
		t.Errorf("no_new_privs %s, seccomp %s", have["NoNewPrivs"], have["Seccomp"])
	}
	var bounding uint64
	if _, err := fmt.Sscanf(have["CapBnd"], "%x", &bounding); err != nil {
		t.Fatal(err)
	}
	u, err := confine.ReadUnit(unit)
	if err != nil {
		t.Fatal(err)
	}
	for number, name := range confine.CapabilityNames {
		if bounding&(1<<number) != 0 && !slices.Contains(u.Capabilities, name) {
			t.Errorf("the gateway has %s", name)
		}
	}
	if len(u.Denied) < 30 || len(u.Families) < 5 {
		t.Errorf("the unit denies %d system calls and allows %q", len(u.Denied), u.Families)
	}
}

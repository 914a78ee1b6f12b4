package packages

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

// uninstall runs `gateway uninstall` in the gateway's namespace, and returns its output and whether it succeeded.
func uninstall(w *harness.World, flags ...string) (string, bool) {
	w.T.Helper()
	cmd := w.Command(w.T.Context(), append([]string{"uninstall", "--config", w.Config}, flags...)...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := w.Net.Gateway().Start(cmd); err != nil {
		w.T.Fatal(err)
	}
	err := cmd.Wait()
	return out.String(), err == nil
}

// network returns all state of the network namespace that a gateway changes, except sysctls.
func network(w *harness.World) string {
	w.T.Helper()
	out, err := w.Net.Gateway().Run(w.T.Context(), "sh", "-c", "ip rule; ip -6 rule; ip -d route show table all; ip -6 route show table all; ip -br addr; nft -t list ruleset; tc filter show 2>&1")
	if err != nil {
		w.T.Fatal(err, out)
	}
	var lines []string
	for line := range strings.Lines(strings.ReplaceAll(out, " tentative", "")) {
		if !ofItself.MatchString(line) {
			lines = append(lines, counters.ReplaceAllString(linkLocal.ReplaceAllString(line, ""), ""))
		}
	}
	return strings.Join(lines, "")
}

// A namespace gets link-local addresses and their routes from the kernel, after some time, and packet counters change.
var (
	ofItself  = regexp.MustCompile(`^((un|any|multi)cast |local )?f[ef][0-9a-f]{2}::`)
	linkLocal = regexp.MustCompile(` fe80::\S+`)
	counters  = regexp.MustCompile(`packets \d+ bytes \d+`)
)

// hostTraces returns the mounts, control groups, claims of user IDs and directories that belong to a world's boxes.
func hostTraces(w *harness.World, boxes ...string) (found []string) {
	w.T.Helper()
	mounts, err := lab.Traces(w.Dir)
	if err != nil {
		w.T.Fatal(err)
	}
	for _, trace := range mounts {
		if trace != "directory "+w.Dir {
			found = append(found, trace)
		}
	}
	for _, box := range boxes {
		for _, pattern := range []string{"/sys/fs/cgroup/boxgate-*-" + box, "/sys/fs/cgroup/*/boxgate-*-" + box} {
			groups, _ := filepath.Glob(pattern)
			found = append(found, groups...)
		}
	}
	claims, _ := filepath.Glob("/run/boxgate-ids/*")
	for _, claim := range claims {
		if owner, err := os.Readlink(claim); err == nil && strings.HasPrefix(owner, w.Dir) {
			found = append(found, claim)
		}
	}
	for _, path := range []string{lab.RunDir(w.Dir), w.Socket} {
		if _, err := os.Lstat(path); err == nil {
			found = append(found, path)
		}
	}
	return found
}

// TestUninstallLeavesNothing: uninstalling removes all traces of a stopped or a killed gateway. Files of boxes stay
// until purge, and a gateway that is started again has them.
func TestUninstallLeavesNothing(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	before := network(w)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	box := w.Create(map[string]any{"network_policy": harness.Custom("plain.example.com")})
	other := w.Attach(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	w.MustSh(box, "echo kept > file")
	if said, ok := uninstall(w, "--yes"); ok || !strings.Contains(said, "stop it first") {
		t.Errorf("while it runs: %v %s", ok, said)
	}
	w.MustSh(box, "test -e file")
	w.Kill()

	if said, ok := uninstall(w); ok || !strings.Contains(said, "--yes") {
		t.Errorf("without an answer: %v %s", ok, said)
	}
	running := network(w)
	said, ok := uninstall(w, "--dry-run", "--json")
	var plan struct {
		Removes, Keeps []struct {
			What  string
			Names []string
		}
	}
	if err := json.Unmarshal([]byte(said), &plan); err != nil || !ok {
		t.Fatalf("%v: %s", err, said)
	}
	for _, name := range []string{box, other, "inet boxgate", "IPv4 1", "10.200.0.1/32", w.Socket, filepath.Join(w.Dir, "state"), "net.ipv4.ip_forward"} {
		if !strings.Contains(said, `"`+name+`"`) {
			t.Errorf("it does not say %s:\n%s", name, said)
		}
	}
	if now := network(w); now != running {
		t.Errorf("a dry run changed\n%s\nto\n%s", running, now)
	}

	if said, ok := uninstall(w, "--yes"); !ok {
		t.Fatal(said)
	}
	if after := network(w); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	if traces := hostTraces(w, box); len(traces) > 0 {
		t.Errorf("left: %q", traces)
	}
	if said, ok := uninstall(w, "--yes"); !ok || !strings.Contains(said, "nothing") {
		t.Errorf("the second time: %v %s", ok, said)
	}

	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	code, err := w.Client.Exec(t.Context(), box, api.ExecRequest{
		Command: []string{"sh", "-c", "cat file; curl -sS -o /dev/null -w %{http_code} http://plain.example.com/"},
	}, &out, &out)
	switch {
	case err != nil && strings.Contains(err.Error(), "are those of another box now"): // the gateway of another test has taken them
	case err != nil || code != 0 || out.String() != "kept\n200":
		t.Errorf("started again, the box says %q, %d, %v", out.String(), code, err)
	}
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if said, ok := uninstall(w, "--purge", "--yes"); !ok {
		t.Fatal(said)
	}
	if _, err := os.Lstat(filepath.Join(w.Dir, "state")); err == nil {
		t.Error("the state was purged and is there")
	}
	if after := network(w); after != before {
		t.Errorf("purged: before\n%s\nafter\n%s", before, after)
	}
	if traces := hostTraces(w, box); len(traces) > 0 {
		t.Errorf("purged: left %q", traces)
	}
}

// TestUninstallLeavesWhatIsSomebodyElses: foreign files and mounts in the configured directories.
func TestUninstallLeavesWhatIsSomebodyElses(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Kill()
	state, run := filepath.Join(w.Dir, "state"), lab.RunDir(w.Dir)
	var theirs []string
	for _, dir := range []string{state, run} {
		mounted := filepath.Join(dir, "mounted")
		if err := os.Mkdir(mounted, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("boxgate-test", mounted, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH); _ = os.RemoveAll(dir) })
		for _, file := range []string{filepath.Join(dir, "file"), filepath.Join(mounted, "file")} {
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			theirs = append(theirs, file)
		}
	}
	said, ok := uninstall(w, "--purge", "--yes")
	if !ok {
		t.Fatal(said)
	}
	for _, file := range theirs {
		if _, err := os.Lstat(file); err != nil {
			t.Error(err)
		}
	}
	for _, dir := range []string{state, run} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if e.Name() != "file" && e.Name() != "mounted" {
				t.Errorf("%s is left", path)
			} else if !strings.Contains(said, path) {
				t.Errorf("it does not say that %s stays:\n%s", path, said)
			}
		}
	}
}

// TestUninstallFindsWhatAnotherConfigurationLeft: the previous pools, after a change of the configuration, and without
// state.
func TestUninstallFindsWhatAnotherConfigurationLeft(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	before := network(w)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(w.Dir, "state")); err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(w.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.Config, []byte(strings.ReplaceAll(string(config), "10.200.0.0/16", "10.99.0.0/16")), 0o600); err != nil {
		t.Fatal(err)
	}
	// A directory that the gateway did not create is not removed.
	mine := filepath.Join(w.Dir, "state", "somebody", "else")
	if err := os.MkdirAll(mine, 0o700); err != nil {
		t.Fatal(err)
	}
	if said, ok := uninstall(w, "--purge", "--yes"); !ok {
		t.Error(said)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error(err)
	}
	if after := network(w); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

// TestUninstallLeavesARunningGatewayAlone: also one with another state directory than the configuration's.
func TestUninstallLeavesARunningGatewayAlone(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	config, err := os.ReadFile(w.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.Config, []byte(strings.ReplaceAll(string(config), filepath.Join(w.Dir, "state"), filepath.Join(w.Dir, "elsewhere"))), 0o600); err != nil {
		t.Fatal(err)
	}
	before := network(w)
	if said, ok := uninstall(w, "--yes"); ok || !strings.Contains(said, "another state directory") {
		t.Errorf("%v: %s", ok, said)
	}
	if after := network(w); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

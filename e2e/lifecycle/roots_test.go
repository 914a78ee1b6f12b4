package lifecycle

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// TestReloadGivesRootsToRunningBoxes: after a reload with another root, programs in a running box trust it without a restart, and those of
// a paused box when it is resumed. `gateway check` names boxes without it until then, and a box that has removed its CA for as long as
// it runs.
func TestReloadGivesRootsToRunningBoxes(t *testing.T) {
	t.Parallel()
	u := newUpgrading(t, nil)
	u.StartIfStopped()
	change, start := harness.WithOrigin(t)
	start(u.World)
	open := map[string]any{"network_policy": harness.Custom(harness.OriginName)}
	running, paused, without := u.Create(open), u.Create(open), u.Create(open)
	const fetch = "env -i curl -sS https://" + harness.OriginName + "/"
	for _, box := range []string{running, paused} {
		if out, code := u.Sh(box, fetch); code != 60 {
			t.Fatalf("before: exit %d: %s", code, out)
		}
	}
	pid, err := os.ReadFile(filepath.Join(u.Dir, "state", "boxes", without, "pid"))
	if err == nil { // as the box's root could
		err = os.WriteFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "root/etc/ssl/certs/ca-certificates.crt"), nil, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, code := u.GatewayCommand("box", "pause", paused); code != 0 {
		t.Fatalf("exit %d: %s", code, out)
	}

	u.reconfigure(change)
	old := func(want ...string) {
		t.Helper()
		out := u.checkedRoots()
		for _, box := range []string{running, paused, without} {
			if got := strings.Contains(out, box); got != slices.Contains(want, box) {
				t.Errorf("%s is named: %v\n%s", box, got, out)
			}
		}
	}
	old(running, paused, without)
	r := u.replace(t.Context(), "reload")
	if !r.Replaced || r.Roots.Trusting != 1 || len(r.Roots.Failed) != 1 || r.Roots.Failed[0].ID != without {
		t.Errorf("%+v", r)
	}
	harness.Contains(t, u.MustSh(running, fetch), "ok")
	old(paused, without)
	again := u.reloadAsUser()
	for _, want := range []string{
		"the configuration has not changed\n", "warning: " + without + " does not trust all of proxy.upstream_ca_files before its next start", "the box has removed the CA from",
	} {
		if !strings.Contains(again, want) {
			t.Errorf("a second reload does not print %q:\n%s", want, again)
		}
	}
	if v := u.status(paused); v != string(api.StatusPaused) {
		t.Errorf("the reload woke a paused box: %s", v)
	}
	harness.Contains(t, u.MustSh(paused, fetch), "ok") // wakes it
	old(without)
	if out, code := u.Sh(without, fetch); code == 0 {
		t.Errorf("a box that removed its CA got roots: %s", out)
	}
}

// reloadAsUser runs `gateway reload` as people do, and returns its output.
func (u *upgrading) reloadAsUser() string {
	u.T.Helper()
	cmd := u.Command(u.T.Context(), "reload")
	cmd.Path, cmd.Args[0] = harness.Gateway(), harness.Gateway()
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := u.Net.Gateway().Start(cmd); err != nil {
		u.T.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		u.T.Fatalf("%v: %s", err, out.String())
	}
	return out.String()
}

// status returns the state of a box.
func (u *upgrading) status(box string) string {
	u.T.Helper()
	var v struct{ Status string }
	if err := u.Client.Do(u.T.Context(), http.MethodGet, api.BoxPath(box), nil, &v); err != nil {
		u.T.Fatal(err)
	}
	return v.Status
}

// checkedRoots returns the lines of `gateway check` about the roots of boxes.
func (u *upgrading) checkedRoots() string {
	u.T.Helper()
	out, _ := u.GatewayCommand("check") // other findings depend on this host
	var lines []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, "roots in boxes") {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		u.T.Fatalf("no finding about roots:\n%s", out)
	}
	return strings.Join(lines, "")
}

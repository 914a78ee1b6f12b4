package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/e2e/harness"
)

// TestSnapshotsByCommand takes, lists, uses and removes a snapshot on the command line.
func TestSnapshotsByCommand(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "source", "network_policy": harness.Custom("api.example.com")})
	w.MustSh(box, "echo kept >state; head -c 8M /dev/urandom >large")
	early := decoded[struct{ ID, Status string }](w, "box", "snapshot", "source", "--no-wait")
	if early.Status != "creating" && early.Status != "ready" || early.ID == "" {
		t.Errorf("without waiting: %+v", early)
	}
	if late := decoded[struct{ ID, Status string }](w, "box", "snapshot", "source"); late.Status != "ready" {
		t.Errorf("it is not waited for: %+v", late)
	}
	out, code := w.GatewayCommand("box", "snapshot", "source", "--name", "after setup")
	id := strings.TrimSpace(out)
	if code != cli.ExitOK || !strings.HasPrefix(id, "snap_") {
		t.Fatalf("%d: %s", code, out)
	}
	if out, code := w.GatewayCommand("snapshot", "list", "--box", "source"); code != cli.ExitOK || !strings.Contains(out, id) || !strings.Contains(out, "after setup") {
		t.Errorf("%d: %s", code, out)
	}
	out, code = w.GatewayCommand("box", "create", "--from-snapshot", id, "--name", "copy", "--json")
	var made struct{ ID string }
	if err := json.Unmarshal([]byte(out), &made); err != nil || code != cli.ExitOK {
		t.Fatalf("%d: %s, %v", code, out, err)
	}
	if got := w.MustSh(made.ID, "cat state"); strings.TrimSpace(got) != "kept" {
		t.Errorf("%q", got)
	}
	for _, c := range []struct {
		args []string
		exit int
	}{
		{[]string{"snapshot", "rm"}, cli.ExitUsage},
		{[]string{"snapshot", "rm", id, "snap_unknown"}, cli.ExitFailed},
		{[]string{"snapshot", "rm", id}, cli.ExitOK},
		{[]string{"snapshot", "rm", id}, cli.ExitFailed},
		{[]string{"snapshot", "rm", "--all", id}, cli.ExitUsage},
		{[]string{"snapshot", "rm", "--box", "source", id}, cli.ExitUsage},
		{[]string{"snapshot", "rm", "--all", "--box", "source"}, cli.ExitUsage}, // it cannot ask
		{[]string{"snapshot", "rm", "--all", "--box", "copy", "--yes"}, cli.ExitOK},
		{[]string{"box", "create", "--from-snapshot", id}, cli.ExitFailed},
		{[]string{"box", "snapshot", "nobody"}, cli.ExitFailed},
	} {
		if out, code := w.GatewayCommand(c.args...); code != c.exit {
			t.Errorf("%v: %d: %s", c.args, code, out)
		}
	}
	if out, code := w.GatewayCommand("snapshot", "list", "--box", "source"); code != cli.ExitOK || strings.Count(out, "snap_") != 2 {
		t.Errorf("removed without a question, or with those of another box: %d: %s", code, out)
	}
	other := w.Create(map[string]any{"name": "other"})
	if out, code := w.GatewayCommand("box", "snapshot", "other"); code != cli.ExitOK {
		t.Fatalf("%d: %s", code, out)
	}
	if out, code := w.GatewayCommand("snapshot", "rm", "--all", "--box", "source", "--yes"); code != cli.ExitOK {
		t.Errorf("%d: %s", code, out)
	}
	for name, want := range map[string]int{"source": 0, "other": 1} {
		if out, code := w.GatewayCommand("snapshot", "list", "--box", name); code != cli.ExitOK || strings.Count(out, "snap_") != want {
			t.Errorf("of %s: %d: %s", name, code, out)
		}
	}
	w.MustDelete(made.ID)
	w.MustDelete(other)
}

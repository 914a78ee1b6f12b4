package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/internal/lab"
)

// The first start on a host dies at each of its steps. The next one picks up from whatever is there, and makes boxes.
func TestAFirstStartThatDiesHoldsUpNone(t *testing.T) {
	t.Parallel()
	for _, step := range stepsOfStart {
		one := strings.HasPrefix(step, "link") || strings.HasPrefix(step, "connect") || strings.HasPrefix(step, "plan")
		if one { // of a box that was there before
			continue
		}
		t.Run(step, func(t *testing.T) {
			w := stoppedWorld(t, lab.Options{})
			w.Env = []string{faultsFile + "=" + w.faultsPath()}
			for _, kind := range []string{faultDie, faultError} {
				w.arm(kind, step)
				if err := w.Start(t.Context()); err == nil {
					t.Errorf("%s: the gateway started", kind)
				}
				w.happened(kind + " at " + step)
				w.Kill()
			}
			w.up()
			w.mustSh(w.create(map[string]any{"network_policy": custom("api.example.com")}), "curl -sS -k -o /dev/null https://api.example.com/")
		})
	}
}

// IPv6 is off on the host: the gateway and `gateway check` say so, and nothing was changed.
func TestAHostWithoutIPv6IsNamedAndLeftAlone(t *testing.T) {
	t.Parallel()
	w := stoppedWorld(t, lab.Options{})
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
	if lacks := w.check(); len(lacks) != 1 || len(lacks["IPv6"]) != 1 || !strings.Contains(lacks["IPv6"][0], "sysctl -w net.ipv6.conf.all.disable_ipv6=0") {
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

// A check of a gateway that runs, and one of a state directory that others may enter.
func TestCheckNamesWhatServeWouldFailOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	if lacks := w.check(); len(lacks) > 0 {
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
	if lacks := w.check(); len(lacks) != 1 || !strings.Contains(strings.Join(lacks["state directory"], ""), "chmod 700") {
		t.Errorf("of a state directory of mode 0755: %q", lacks)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if lacks := w.check(); len(lacks) > 0 {
		t.Errorf("then: %q", lacks)
	}
}

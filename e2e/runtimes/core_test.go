package runtimes

import (
	"bytes"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/launcher/oci"
	"boxgate/policy"
)

// builtPath is the directory where `make runsc` installs gVisor.
const builtPath = "/var/lib/boxgate/gvisor"

// present returns the path of a runtime, or "" if it is not installed.
func present(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	if path, err := exec.LookPath(filepath.Join(builtPath, name)); err == nil {
		return path
	}
	return ""
}

// each runs a test under every installed runtime, with changes of the configuration. The default must be installed.
func each(t *testing.T, test func(t *testing.T, w *harness.World, runtime *oci.Runtime), more ...func(*config.Config)) {
	t.Helper()
	for _, name := range oci.Names() {
		path, runtime := present(name), oci.ByName(name)
		if path == "" && name == oci.Default {
			t.Fatalf("there is no %s: %s", name, runtime.Install)
		}
		if path == "" {
			t.Logf("NOT RUN under %s, which this host does not have: see docs/running.md", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if runtime.RefusesHybrid {
				path = harness.WithoutUnified(t, path)
			}
			test(t, harness.NewWorld(t, func(c *config.Config) {
				c.Launcher.Runtime = path
				for _, change := range more {
					change(c)
				}
			}), runtime)
		})
	}
}

// Commands get their environment, directory and streams. Their output streams arrive separately and complete, and their
// exit status follows the shell's rules.
func TestCommandsUnderEachRuntime(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *harness.World, _ *oci.Runtime) {
		box := w.Create(map[string]any{"env_vars": map[string]string{"STAGE": "test"}})
		run := func(line string) (string, string, int) {
			t.Helper()
			var stdout, stderr bytes.Buffer
			res, err := w.Client.Exec(t.Context(), box, api.ExecRequest{Command: []string{"sh", "-c", line}}, &stdout, &stderr)
			if err != nil {
				t.Fatal(err)
			}
			return stdout.String(), stderr.String(), res
		}
		if out, errs, code := run("echo $STAGE; pwd; id -un; echo oops >&2; exit 7"); out != "test\n/workspace/home\nboxuser\n" || errs != "oops\n" || code != 7 {
			t.Errorf("%q %q %d", out, errs, code)
		}
		if out, _, code := run("head -c 3000000 /dev/zero"); len(out) != 3000000 || code != 0 {
			t.Errorf("%d bytes of output, exit status %d", len(out), code)
		}
		if _, _, code := run("kill -9 $$"); code != 137 {
			t.Errorf("a command that kills itself: %d", code)
		}
		if _, _, code := run("no-such-program"); code != 127 {
			t.Errorf("a program that does not exist: %d", code)
		}
		if code, err := w.Client.Exec(t.Context(), box, api.ExecRequest{Command: []string{"no-such-program"}}, io.Discard, io.Discard); err != nil || code != 127 {
			t.Errorf("a program that does not exist, without a shell: %d %v", code, err)
		}
		run("echo kept > note; (sleep 300 >/dev/null 2>&1 &)")
		if out, _, _ := run("cat note; pgrep -c sleep || ps ax | grep -c '[s]leep 300'"); !strings.HasPrefix(out, "kept\n1") {
			t.Errorf("what the last command left: %q", out)
		}
		w.MustDelete(box)
		nothingLeft(w, box)
	})
}

// nothingLeft fails the test if traces of a deleted box are on the host.
func nothingLeft(w *harness.World, box string) {
	w.T.Helper()
	for _, pattern := range []string{
		filepath.Join(lab.RunDir(w.Dir), "*", "*"+box+"*"), filepath.Join(w.Dir, "state", "boxes", "*"),
		"/sys/fs/cgroup/*" + box + "*", "/sys/fs/cgroup/*/*" + box + "*",
	} {
		w.Until("nothing is left at "+pattern, func() bool {
			found, err := filepath.Glob(pattern)
			return err == nil && len(found) == 0
		})
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), box) {
		w.T.Errorf("a mount is left of box %s (%v)", box, err)
	}
}

// Under each runtime a box's traffic is decided in the same way, secrets are set outside of it, and it trusts its CA.
func TestEgressUnderEachRuntime(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *harness.World, _ *oci.Runtime) {
		box := w.Create(map[string]any{
			"network_policy": harness.Custom("*.example.com"),
			"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.Canary}},
		})
		for _, family := range []string{"-4", "-6"} {
			if out, code := w.Sh(box, "curl -sS --max-time 60 "+family+" https://api.example.com/echo"); code != 0 || !strings.Contains(out, harness.Canary) {
				t.Errorf("curl %s: %d %s", family, code, out)
			}
			if out, code := w.Sh(box, "curl -sS --max-time 60 "+family+" https://evil.example.net/"); code != 35 {
				t.Errorf("a host that is not allowed, %s: %d %s", family, code, out)
			}
		}
		w.Event(box, func(e audit.Event) bool { return e.Verdict == policy.Deny && e.Name == "evil.example.net" })
		evil := w.V4("evil.example.net").String()
		for _, line := range []string{
			"curl -sS --max-time 30 -k --resolve evil.example.net:443:" + evil + " https://evil.example.net/",
			"curl -sS --max-time 30 http://" + evil + "/", "curl -sS --max-time 30 http://169.254.169.254/",
			"curl -sS --max-time 30 http://10.200.0.1:8600/healthz",
		} {
			if out, code := w.Sh(box, line+" --fail"); code == 0 {
				t.Errorf("%s: %s", line, out)
			}
		}
		if out, code := w.Sh(box, "python3 -c 'import urllib.request as r; print(r.urlopen(\"https://api.example.com/echo\").status)'"); code != 0 || !strings.Contains(out, "200") {
			t.Errorf("python: %d %s", code, out)
		}
		w.SetPolicy(box, map[string]any{"mode": "deny-all"})
		if out, code := w.Sh(box, "curl -sS --max-time 60 https://api.example.com/echo"); code != 35 {
			t.Errorf("after its policy was tightened: %d %s", code, out)
		}
		w.NothingReached("evil.example.net")
	})
}

// A paused box does not run or answer, and continues unchanged, even if it starts processes all the time.
func TestPauseUnderEachRuntime(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *harness.World, _ *oci.Runtime) {
		box := w.Create(map[string]any{})
		w.MustSh(box, `(i=0; while :; do i=$((i+1)); echo $i > n; /bin/true; done) >/dev/null 2>&1 &`)
		call := func(what string) {
			t.Helper()
			if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, what), nil, nil); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		for range 5 {
			call("pause")
			if status, _ := w.BoxStatus(box); status != "paused" {
				t.Errorf("it is %s", status)
			}
			call("resume")
			before := w.MustSh(box, "cat n")
			w.Until("what ran goes on", func() bool { return w.MustSh(box, "cat n") != before })
		}
		call("pause")
		w.MustDelete(box)
		nothingLeft(w, box)
	})
}

// Boxes survive a killed gateway: their processes, files and network do not change.
func TestRestartUnderEachRuntime(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *harness.World, _ *oci.Runtime) {
		box := w.Create(map[string]any{"network_policy": harness.Custom("plain.example.com")})
		w.MustSh(box, "echo kept > note; (sleep 300 >/dev/null 2>&1 &)")
		works := func(when string) {
			t.Helper()
			if out, code := w.Sh(box, "cat note; curl -sS --max-time 60 -4 http://plain.example.com/seen && curl -sS --max-time 60 -6 http://plain.example.com/seen"); code != 0 || !strings.HasPrefix(out, "kept\n") || strings.Count(out, "GET /seen") != 2 {
				t.Errorf("%s: %d %s", when, code, out)
			}
			if out, code := w.Sh(box, "curl -sS --max-time 60 --connect-timeout 20 --fail http://"+netip.AddrPortFrom(w.V4("evil.example.net"), 80).String()+"/"); code == 0 {
				t.Errorf("%s: a host that is not allowed: %s", when, out)
			}
		}
		works("created")
		w.Kill()
		w.StartIfStopped()
		works("after a restart of the gateway")
		if out := w.MustSh(box, "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep '^sleep 300'; echo; done | grep -c sleep"); out != "1\n" {
			t.Errorf("what ran in it: %q", out)
		}
		w.NFT("flush ruleset")
		w.Until("the rules are back", func() bool {
			_, code := w.Sh(box, "curl -sS --max-time 5 -o /dev/null http://plain.example.com/seen")
			return code == 0
		})
		works("after a flush of the rules")
		w.MustDelete(box)
		nothingLeft(w, box)
	})
}

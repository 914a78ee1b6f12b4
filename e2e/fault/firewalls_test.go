package fault

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// firewallsRoot is where `make firewalls` makes a root file system with firewalld and ufw.
const firewallsRoot = "/var/lib/boxgate/firewalls-1"

// hostSystem is that root file system, on the network of a world's gateway, with mount and PID namespaces of its own.
type hostSystem struct {
	w   *harness.World
	pid string // of its first process
	dir string
}

// startHostSystem mounts the system and starts its first process. It ends with the test.
func startHostSystem(w *harness.World) *hostSystem {
	w.T.Helper()
	if _, err := os.Stat(filepath.Join(firewallsRoot, "ready")); err != nil {
		w.T.Fatalf("there is no firewalld to test with: run `sudo make firewalls` (%v)", err)
	}
	h := &hostSystem{w: w, dir: filepath.Join(w.Dir, "system")}
	for _, sub := range []string{"root", "upper", "work"} {
		if err := os.MkdirAll(filepath.Join(h.dir, sub), 0o755); err != nil {
			w.T.Fatal(err)
		}
	}
	const script = `mount -t overlay -o lowerdir=$LOWER,upperdir=$D/upper,workdir=$D/work none $D/root && cd $D/root &&
mount -t proc none proc && mount --rbind /dev dev && mount -t tmpfs none run && mkdir -p run/dbus run/lock && mount -t sysfs -o ro none sys &&
touch ready-now && exec chroot . tail -f /dev/null`
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script)
	cmd.Env = append(os.Environ(), "D="+h.dir, "LOWER="+firewallsRoot)
	if err := w.Net.Gateway().Start(cmd); err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() {
		if pid, err := strconv.Atoi(h.pid); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // with all others; unshare then ends
		} else {
			_ = cmd.Process.Kill()
		}
		_ = cmd.Wait()
	})
	w.Until("the system is mounted", func() bool {
		pid := strconv.Itoa(cmd.Process.Pid)
		children, _ := os.ReadFile(filepath.Join("/proc", pid, "task", pid, "children"))
		h.pid = strings.TrimSpace(string(children))
		_, err := os.Stat(filepath.Join(h.dir, "upper", "ready-now"))
		return err == nil && h.pid != ""
	})
	return h
}

// command prepares a shell line in the system.
func (h *hostSystem) command(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", "--target", h.pid, "--mount", "--pid", "chroot", h.dir+"/root", "sh", "-c", line)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	return cmd
}

// sh runs a shell line that must succeed.
func (h *hostSystem) sh(line string) string {
	h.w.T.Helper()
	var out strings.Builder
	ctx, cancel := context.WithTimeout(h.w.T.Context(), harness.Patience)
	defer cancel()
	cmd := h.command(ctx, line)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := h.w.Net.Gateway().Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		h.w.T.Fatalf("%s: %v\n%s", line, err, out.String())
	}
	return out.String()
}

// otherRules returns what `gateway check` reports about rules of other programs.
func otherRules(w *harness.World) string {
	w.T.Helper()
	out, _ := w.Net.Gateway().Run(w.T.Context(), w.Self, "check", "--json", "--config", w.Config)
	var findings []struct{ What, Error string }
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&findings); err != nil {
		w.T.Fatalf("%v: %s", err, out)
	}
	var found []string
	for _, f := range findings {
		if f.What == "other firewall rules" && f.Error != "" {
			found = append(found, f.Error)
		}
	}
	return strings.Join(found, "\n")
}

// remedyOf returns the command in a finding.
func remedyOf(w *harness.World, finding, program string) string {
	w.T.Helper()
	_, remedy, ok := strings.Cut(finding, "allow it with: ")
	if !ok || !strings.HasPrefix(finding, program+" drops ") || strings.Contains(finding, "\n") {
		w.T.Fatalf("the check says %q, want one finding about %s, with a command", finding, program)
	}
	page, err := os.ReadFile("../../docs/hosts.md")
	if err != nil || !strings.Contains(string(page), "\n"+remedy+"\n") {
		w.T.Errorf("%v: docs/hosts.md does not have the command %s", err, remedy)
	}
	return remedy
}

// opened asserts that a box reaches what its policy allows, by the kernel and by the proxy, in both families.
func opened(r *harness.Raider, what string) {
	r.T.Helper()
	for _, a := range extra {
		r.Until(what+": the kernel forwards", func() bool { return r.Try("udp", netip.AddrPortFrom(a, 4444)) == harness.Saw(nil) })
	}
	for _, family := range []string{"-4", "-6"} {
		r.Until(what+": the proxy passes, "+family, func() bool {
			_, code := r.Sh(r.Box, "curl -sS -o /dev/null --max-time 20 "+family+" https://api.example.com/")
			return code == 0
		})
	}
}

// firewallProgram is a program that manages the host's rules.
type firewallProgram struct {
	start    string
	disturbs []string // commands that change its rules later; the gate runs the first one only
}

const stopFirewalld = "pkill firewalld; pkill dbus-daemon; for i in $(seq 600); do nft list table inet firewalld >/dev/null 2>&1 || break; sleep 0.1; done; "

const startFirewalld = "rm -f /run/dbus/pid; dbus-daemon --system --fork; firewalld --nofork --nopid >/dev/null 2>&1 & " +
	"for i in $(seq 600); do firewall-cmd --state >/dev/null 2>&1 && exit 0; sleep 0.1; done; exit 1"

var firewallPrograms = map[string]firewallProgram{
	"firewalld": {startFirewalld, []string{"firewall-cmd --reload", "firewall-cmd --complete-reload", stopFirewalld + startFirewalld}},
	"ufw":       {"ufw --force enable", []string{"ufw reload", "ufw default deny routed", "ufw disable && ufw --force enable"}},
}

// firewalld and ufw, as Debian installs them, are started beside the gateway, before it and after it. They drop boxes'
// traffic until the command of `gateway check` is followed, and reload without letting a box out.
func TestAttackBesideHostFirewalls(t *testing.T) {
	t.Parallel()
	for name, program := range firewallPrograms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := harness.NewCaptured(t, nil)
			h := startHostSystem(w)
			r := w.Raid(w.Create(map[string]any{"network_policy": wide}))
			w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
			s := besiege(w, harness.AttackerAt(101))
			opened(r, "alone")
			h.sh(program.start)
			remedy := remedyOf(w, otherRules(w), name)
			for _, a := range extra {
				if got := r.Try("udp", netip.AddrPortFrom(a, 4444)); got == harness.Saw(nil) {
					t.Errorf("%s drops nothing to %v", name, a)
				}
			}
			h.sh(remedy)
			if got := otherRules(w); got != "" {
				t.Errorf("after its command, the check reports: %s", got)
			}
			opened(r, "started after the gateway")
			for _, line := range program.disturbs[:nightly.Size(1, len(program.disturbs))] {
				h.sh(line)
				opened(r, line)
			}
			if n := w.Restored(); n > 0 {
				t.Errorf("the gateway has restored its rules %d times, which %s does not touch", n, name)
			}
			w.Kill()
			if err := w.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			opened(r, "started before the gateway")
			s.assertHolds()
		})
	}
}

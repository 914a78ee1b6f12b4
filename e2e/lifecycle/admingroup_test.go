package lifecycle

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"boxgate/config"
	"boxgate/e2e/harness"
)

// groupUser runs commands of the gateway as an unprivileged user in one more group.
type groupUser struct {
	u       *upgrading
	program string
	as      syscall.Credential
}

// run returns the output and the status of a command.
func (g groupUser) run(program string, args ...string) (string, int) {
	g.u.T.Helper()
	cmd := exec.CommandContext(g.u.T.Context(), program, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "BOXGATE_ADMIN=" + g.u.Socket}
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &g.as}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		g.u.T.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// status returns the HTTP status of a request over the socket.
func (g groupUser) status(more ...string) string {
	out, _ := g.run("curl", append([]string{"-s", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket", g.u.Socket, "http://localhost/v2/box"}, more...)...)
	return out
}

// TestAttackMembersOfAdminGroup: members of admin.group use the Unix socket without a key, and are in the audit trail by user.
// Without the group, the socket or the key's absence, everybody needs a key: other users, root, and clients of the TCP listener,
// also with the ID of a member. The group changes on reload.
func TestAttackMembersOfAdminGroup(t *testing.T) {
	t.Parallel()
	group, err := user.LookupGroup("games")
	nobody, errUser := user.LookupId("65534")
	if err != nil || errUser != nil {
		t.Fatal(err, errUser)
	}
	gid, _ := strconv.Atoi(group.Gid)
	u := newUpgrading(t, func(c *config.Config) { c.Admin.Group = group.Name })
	if err := u.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(u.Dir, "cli")
	if out, err := exec.CommandContext(t.Context(), "install", "-m", "755", harness.Gateway(), program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for dir := u.Dir; dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // but the state directory
			t.Fatal(err)
		}
	}
	member := groupUser{u, program, syscall.Credential{Uid: 65534, Gid: 65534, Groups: []uint32{uint32(gid)}}}
	others := map[string]groupUser{
		"another user":          {u, program, syscall.Credential{Uid: 65534, Gid: 65534}},
		"root":                  {u, program, syscall.Credential{}},
		"root in the group":     {u, program, syscall.Credential{Gid: uint32(gid)}},
		"root, also in a group": {u, program, syscall.Credential{Groups: []uint32{uint32(gid)}}},
	}
	mode := func() string {
		info, err := os.Lstat(u.Socket)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%v %d %d", info.Mode().Perm(), info.Sys().(*syscall.Stat_t).Uid, info.Sys().(*syscall.Stat_t).Gid)
	}
	works := func() {
		t.Helper()
		if out, code := member.run(program, "policy", "named", "set", "web", "deny-all"); code != 0 {
			t.Errorf("a member is refused: %s", out)
		}
		if want := fmt.Sprintf("-rw-rw---- 0 %d", gid); mode() != want {
			t.Errorf("the socket is %s, want %s", mode(), want)
		}
	}
	works()
	trail, code := member.run(program, "audit", "--json")
	if want := `"remote":"unix, uid 65534 (` + nobody.Username + `)"`; code != 0 || !strings.Contains(trail, want) {
		t.Errorf("the trail does not contain %s:\n%s", want, trail)
	}
	for who, o := range others {
		if got := o.status(); got != "401" && !(got == "000" && who == "another user") {
			t.Errorf("%s gets %s without a key", who, got)
		}
	}
	for _, key := range []string{"X-Box-Api-Key: wrong", "Authorization: Bearer wrong", "X-Box-Api-Key;", "Authorization: Basic bm9ib2R5Og=="} {
		if got := member.status("-H", key); got != "401" {
			t.Errorf("a member gets %s with %q", got, key)
		}
	}
	if out, err := u.Net.Gateway().Run(t.Context(), "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1:8600/v2/box"); err != nil || out != "401" {
		t.Errorf("without a key, over TCP: %s, %v", out, err)
	}
	if out, code := others["another user"].run(program, "box", "list"); code != 1 || !strings.Contains(out, "permission denied. Run this with sudo, or as a member of admin.group") {
		t.Errorf("another user: exit %d: %s", code, out)
	}
	u.reconfigure(func(c *config.Config) { c.Admin.Group = "" })
	u.mustReplace("reload")
	if out, code := member.run(program, "box", "list"); code != 1 || !strings.Contains(out, "permission denied. Run this with sudo, or as a member of admin.group") || !strings.HasPrefix(mode(), "-rw------- 0 ") {
		t.Errorf("after the group was removed: exit %d, the socket is %s: %s", code, mode(), out)
	}
	u.reconfigure(func(c *config.Config) { c.Admin.Group = group.Name })
	u.mustReplace("reload")
	works()
	u.reconfigure(func(c *config.Config) { c.Admin.Group = "no-such-group" })
	if r := u.replace(t.Context(), "reload"); r.Replaced || !strings.Contains(r.Error, "admin.group: this host has no group") {
		t.Errorf("%+v", r)
	}
	works()
}

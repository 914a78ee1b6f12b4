package secrets

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet/sshd"
	"boxgate/policy"
	"boxgate/policy/name"
)

const (
	forge     = "forge.example.com" // an SSH server with a rule
	forgeAddr = "198.51.100.131"
	decoy     = "decoy.example.com" // one without
	decoyAddr = "198.51.100.132"
)

// sshWorld is a gateway with the key to an SSH server, and boxes with OpenSSH's client.
type sshWorld struct {
	*harness.World
	server *sshd.Server
	key    string // file
	told   chan string
}

// newSSHWorld creates a world, with lines added to the server's configuration.
func newSSHWorld(t *testing.T, lines ...string) *sshWorld {
	t.Helper()
	w := &sshWorld{World: harness.NewStopped(t, lab.Options{}), server: sshd.New(t, lines...), key: filepath.Join(t.TempDir(), "key"), told: make(chan string, 64)}
	if err := os.WriteFile(w.key, []byte(w.server.Key), 0o600); err != nil {
		t.Fatal(err)
	}
	addConfig(w.World, "secrets:\n  forge-key: {file: "+w.key+", document: true}\n")
	if err := errors.Join(w.Net.AddHost(forge, forgeAddr), w.Net.AddHost(decoy, decoyAddr)); err != nil {
		t.Fatal(err)
	}
	go w.server.Serve(w.ListenBeside(forgeAddr + ":22"))
	go w.recordGreetings(w.ListenBeside(decoyAddr + ":22"))
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// recordGreetings records the data sent to a silent server.
func (w *sshWorld) recordGreetings(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			line := make([]byte, 64)
			n, _ := io.ReadAtLeast(c, line, 4)
			w.told <- string(line[:n])
		}()
	}
}

// box creates a box with a rule for the server.
func (w *sshWorld) box(more map[string]any) string {
	w.T.Helper()
	rule := map[string]any{"user": sshd.User, "key": map[string]string{"secret": "forge-key"}, "host_keys": []string{w.server.HostKey}}
	for k, v := range more {
		rule[k] = v
	}
	return w.Create(map[string]any{
		"network_policy": harness.Custom(forge+":22", decoy+":22"), "attach_headers": map[string]any{forge + ":22": map[string]any{"ssh": rule}},
	})
}

func rule(name, access string) map[string]string {
	return map[string]string{"name": name, "access": access}
}

// TestGitOverSSHFromABox: git pulls and pushes the repositories named by the rule with a key that is never in the box.
// The key allows no other use. The box knows the gateway's host key without any setup.
func TestGitOverSSHFromABox(t *testing.T) {
	t.Parallel()
	w := newSSHWorld(t)
	for _, repo := range []string{"acme/web.git", "acme/tools.git", "acme/secret.git"} {
		w.server.Repo(repo)
	}
	box := w.box(map[string]any{"repos": []any{rule("acme/web", "push"), rule("acme/tools", "read")}})
	const commit = "git -c user.name=B -c user.email=b@example.com commit -q --allow-empty -m "
	harness.Contains(t, w.MustSh(box, "cd $(mktemp -d) && git init -q -b main . && "+commit+"first && git push -q "+sshd.User+"@"+forge+":acme/web.git main && echo pushed"), "pushed")
	harness.Contains(t, w.MustSh(box, "cd $(mktemp -d) && git clone -q ssh://"+sshd.User+"@"+forge+"/acme/web 2>&1 | grep boxgate; echo over"), "over")
	harness.Contains(t, w.MustSh(box, "cd $(mktemp -d) && git clone -q "+sshd.User+"@"+forge+":acme/web && cd web && git log --format=%s && "+commit+"second && git push -q && git fetch && git log --format=%s origin/main"), "first", "second")
	harness.Contains(t, w.MustSh(box, "cd $(mktemp -d) && git clone -q "+sshd.User+"@"+forge+":acme/tools && echo cloned"), "cloned")

	const ssh = "ssh -o BatchMode=yes "
	for what, line := range map[string]string{
		"a push with access read":   "cd $(mktemp -d) && git init -q -b main . && " + commit + "x && git push " + sshd.User + "@" + forge + ":acme/tools.git main",
		"another repository":        "git ls-remote " + sshd.User + "@" + forge + ":acme/secret.git",
		"another, by an odd path":   "git ls-remote " + sshd.User + "@" + forge + ":acme/web/../secret.git",
		"a command":                 ssh + sshd.User + "@" + forge + " cat authorized_keys",
		"a shell":                   ssh + sshd.User + "@" + forge + " </dev/null",
		"sftp":                      ssh + "-s " + sshd.User + "@" + forge + " sftp",
		"another user":              ssh + "root@" + forge + " id",
		"a port of the server":      ssh + "-o ExitOnForwardFailure=yes -W localhost:22 " + sshd.User + "@" + forge,
		"a port of the box's":       ssh + "-o ExitOnForwardFailure=yes -N -R 2222:localhost:22 " + sshd.User + "@" + forge,
		"a token for large objects": ssh + sshd.User + "@" + forge + " git-lfs-authenticate acme/web.git upload",
	} {
		if out, code := w.Sh(box, line+" 2>&1"); code == 0 {
			t.Errorf("%s: %s", what, out)
		}
	}
	if _, err := os.Stat(filepath.Join(w.server.Home, "acme/tools.git/refs/heads/main")); err == nil {
		t.Error("a push with access read has arrived")
	}

	e := w.Event(box, func(e audit.Event) bool { return e.Method == "git-receive-pack" && e.Verdict == policy.Allow })
	if e.Path != "acme/web" || e.Rule != "push "+forge+"/acme/web" || e.Secret != "forge-key" || e.Login != "ssh://"+sshd.User+"@"+forge+":22" {
		t.Errorf("the push is recorded as %+v", e)
	}
	e = w.Event(box, func(e audit.Event) bool { return e.Method == "git-receive-pack" && e.Verdict == policy.Deny })
	if e.Path != "acme/tools" || e.Rule != "read "+forge+"/acme/tools" || e.Reason != name.ReasonRequestRule {
		t.Errorf("the refused push is recorded as %+v", e)
	}
	w.Event(box, func(e audit.Event) bool { return e.Method == "direct-tcpip" && e.Verdict == policy.Deny })
	w.Event(box, func(e audit.Event) bool {
		return e.Method == "" && e.Reason == name.ReasonHeaderRule && e.Verdict == policy.Deny
	})
	w.nothingShown(box)
}

// nothingShown fails the test if the key, or part of it, is anywhere except in its file.
func (w *sshWorld) nothingShown(box string) {
	w.T.Helper()
	lines := strings.Split(w.server.Key, "\n")
	part := lines[len(lines)-4][8:40]
	for where, text := range map[string]string{"log": w.LogText(), "metrics": string(w.Metrics()), "decisions": fmt.Sprintf("%+v", w.Events(box))} {
		if strings.Contains(text, part) {
			w.T.Errorf("the key is in the %s", where)
		}
	}
	if found := strings.Fields(harness.Output(w.Sh(box, lab.SearchLine(part)))); strings.Join(found, " ") != "0 0 0" {
		w.T.Errorf("the key is in the box: %v", found)
	}
}

// TestSSHFromABox: without limits the box may do everything as the user, on that host only, until the rule, the policy
// or the key is removed.
// policy or the key is removed.
func TestSSHFromABox(t *testing.T) {
	t.Parallel()
	w := newSSHWorld(t)
	box := w.box(nil)
	const ssh = "ssh -o BatchMode=yes " + sshd.User + "@"
	if out, code := w.Sh(box, "echo in | "+ssh+forge+" 'cat; echo err >&2; exit 5' 2>&1"); code != 5 || !strings.Contains(out, "in\n") || !strings.Contains(out, "err") {
		t.Errorf("exit %d: %s", code, out)
	}
	harness.Contains(t, w.MustSh(box, "grep -c 'boxgate box' /etc/ssh/ssh_known_hosts"), "1")
	out, _ := w.GatewayCommand("ca", "--box", box, "--ssh")
	if known := w.MustSh(box, "cat /etc/ssh/ssh_known_hosts"); known != out || !strings.HasPrefix(out, "* ecdsa-sha2-nistp256 ") {
		t.Errorf("the box has %q, the gateway shows %q", known, out)
	}

	// A connection to a host without a rule is passed through: the host gets the client's data, unchanged.
	wait := w.Background(box, "timeout 20 "+ssh+decoy+" id", io.Discard)
	if got := <-w.told; !strings.HasPrefix(got, "SSH-2.0-OpenSSH") {
		t.Errorf("the other host was told %q", got)
	}
	_, _ = wait()

	w.assertEnds(box, "the rule", func() {
		if out, code := w.GatewayCommand("headers", "rm", "--box", box, forge+":22"); code != 0 {
			t.Fatal(out)
		}
	})
	box = w.box(nil)
	w.assertEnds(box, "the key", func() {
		if err := os.Remove(w.key); err != nil {
			t.Fatal(err)
		}
		if out, code := w.GatewayCommand("secret", "refresh", "forge-key"); code == 0 {
			t.Errorf("a key that is gone was refreshed: %s", out)
		}
	})
	if out, code := w.Sh(box, ssh+forge+" id 2>&1"); code == 0 || !strings.Contains(out, "is not available") {
		t.Errorf("without a key: exit %d: %s", code, out)
	}
	w.Event(box, func(e audit.Event) bool { return e.Reason == name.ReasonSecretUnavailable && e.Method == "" })
}

// assertEnds fails the test if an open connection outlives the credentials it was made with.
func (w *sshWorld) assertEnds(box, what string, end func()) {
	w.T.Helper()
	wait := w.Background(box, "ssh -o BatchMode=yes "+sshd.User+"@"+forge+" 'echo up; while kill -0 $PPID; do sleep 0.2; done' >/tmp/out 2>&1", io.Discard)
	w.MustSh(box, "until grep -q up /tmp/out; do sleep 0.1; done")
	end()
	if code, err := wait(); code == 0 || err != nil {
		w.T.Errorf("after %s had gone: exit %d, %v", what, code, err)
	}
	w.Event(box, func(e audit.Event) bool { return e.Method == "exec" && e.Verdict == policy.Deny })
}

// TestLoginAtAnAddressOfTwoNames: a host that the gateway logs in to shares its address with a name without a rule for
// the port. A box that has resolved both is logged in. If both have a rule, the destination is ambiguous and no login
// is made.
func TestLoginAtAnAddressOfTwoNames(t *testing.T) {
	t.Parallel()
	w := newSSHWorld(t)
	w.server.Repo("acme/web.git")
	const pages = "pages.example.com"
	if err := w.Net.AddHost(pages, forgeAddr); err != nil {
		t.Fatal(err)
	}
	box := w.box(map[string]any{"repos": []any{rule("acme/web", "push")}})
	const list = "git ls-remote " + sshd.User + "@" + forge + ":acme/web.git"
	w.MustSh(box, list) // the control
	for _, allowed := range []string{pages + ":443", pages} {
		w.SetPolicy(box, harness.Custom(forge+":22", allowed))
		w.MustSh(box, "getent ahostsv4 "+forge+" && getent ahostsv4 "+pages+" | grep "+forgeAddr+" && "+list)
	}
	login := map[string]any{"user": sshd.User, "key": map[string]string{"secret": "forge-key"}, "host_keys": []string{w.server.HostKey}}
	rules := map[string]any{"attach_headers": map[string]any{forge + ":22": map[string]any{"ssh": login}, pages + ":22": map[string]any{"ssh": login}}}
	if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(box, "config/attach-headers"), rules, nil); err != nil {
		t.Fatal(err)
	}
	if out, code := w.Sh(box, list); code == 0 {
		t.Errorf("for one of two hosts with a login, it was logged in: %s", out)
	}
	w.Event(box, func(e audit.Event) bool { return e.Port == 22 && e.Reason == name.ReasonNoName })
}

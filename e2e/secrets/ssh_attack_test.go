package secrets

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet/sshd"
	"boxgate/policy"
	"boxgate/policy/name"
)

const sshTo = "ssh -o BatchMode=yes -o ConnectTimeout=60 "

// TestAttackSSHServerWithAnotherKey: a server without the host key of the rule gets no user and no signature, whatever
// the client in the box accepts.
func TestAttackSSHServerWithAnotherKey(t *testing.T) {
	t.Parallel()
	w := newSSHWorld(t)
	_, other := sshd.NewKey(t)
	box := w.box(map[string]any{"host_keys": []string{other}})
	for _, options := range []string{"", "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o GlobalKnownHostsFile=/dev/null "} {
		out, code := w.Sh(box, sshTo+options+sshd.User+"@"+forge+" id 2>&1")
		if code == 0 || !strings.Contains(out, "the host key of "+forge+" is not in the rule") {
			t.Errorf("%s: exit %d: %s", options, code, out)
		}
	}
	w.Event(box, func(e audit.Event) bool {
		return e.Reason == name.ReasonUpstreamTLS && e.Verdict == policy.Deny && e.Rule == forge+":22"
	})
	w.Until("the server has logged both", func() bool { return strings.Count(w.server.Log(), "Connection from") >= 2 })
	if log := w.server.Log(); strings.Contains(log, "userauth-request") || strings.Contains(log, "Accepted") {
		t.Errorf("the server was asked to log in: %s", log)
	}
}

// TestAttackSSHBeyondTheRule tries with OpenSSH's client the commands and forwardings that a rule does not allow.
func TestAttackSSHBeyondTheRule(t *testing.T) {
	t.Parallel()
	w := newSSHWorld(t, "AcceptEnv *", "PermitTunnel yes", "PermitUserEnvironment yes", "X11Forwarding yes", "MaxSessions 100")
	limited, whole := w.box(map[string]any{"commands": []string{"echo allowed"}}), w.box(nil)
	const at = sshd.User + "@" + forge
	harness.Contains(t, w.MustSh(limited, sshTo+at+" echo allowed"), "allowed")
	for what, line := range map[string]string{
		"more behind it":        sshTo + at + " 'echo allowed; touch taken'",
		"more on another line":  sshTo + at + ` "$(printf 'echo allowed\ntouch taken')"`,
		"more words":            sshTo + at + " echo allowed twice",
		"a path to it":          sshTo + at + " /bin/echo allowed",
		"a shell":               "echo 'touch taken' | " + sshTo + at,
		"a shell in a terminal": "echo 'touch taken' | " + sshTo + "-tt " + at,
		"the command by scp":    "scp -O -o BatchMode=yes /etc/hostname " + at + ":taken",
		"scp":                   "scp -s -o BatchMode=yes /etc/hostname " + at + ":taken",
		"sftp":                  "echo 'put /etc/hostname taken' | sftp -b - -o BatchMode=yes " + at,
		"git":                   "git ls-remote " + at + ":acme/web.git",
		"another user":          sshTo + "root@" + forge + " echo allowed",
	} {
		if out, code := w.Sh(limited, line+" 2>&1"); code == 0 {
			t.Errorf("%s: %s", what, out)
		}
	}
	for what, options := range map[string]string{
		"a port of the server's network": "-o ExitOnForwardFailure=yes -W 127.0.0.1:22 ",
		"a port of the box's, there":     "-o ExitOnForwardFailure=yes -N -R 127.0.0.1:0:127.0.0.1:22 ",
		"all ports, there":               "-o ExitOnForwardFailure=yes -N -R 0 ",
		"a socket of the box's, there":   "-o ExitOnForwardFailure=yes -N -R /tmp/there:/tmp/here ",
	} {
		if out, code := w.Sh(whole, "timeout 60 "+sshTo+options+at+" </dev/null 2>&1"); code == 0 || code == 124 {
			t.Errorf("%s: exit %d: %s", what, code, out)
		}
	}
	w.listeners(whole, at)
	out := w.MustSh(whole, "SECRET=1 LC_OF=box "+sshTo+"-o SendEnv='SECRET LC_OF' -o SetEnv=LD_PRELOAD=/x "+at+" env")
	if strings.Contains(out, "SECRET") || strings.Contains(out, "LD_PRELOAD") || !strings.Contains(out, "LC_OF=box") {
		t.Errorf("the environment of a command: %s", out)
	}
	out = w.MustSh(whole, "eval $(ssh-agent) >/dev/null; "+sshTo+"-A "+at+" 'echo agent $SSH_AUTH_SOCK .'; DISPLAY=:1 "+sshTo+"-X "+at+" 'echo display $DISPLAY .' 2>/dev/null")
	if !strings.Contains(out, "agent .") || !strings.Contains(out, "display .") {
		t.Errorf("an agent or a display is forwarded: %s", out)
	}
	for _, verb := range []string{"direct-tcpip", "direct-streamlocal@openssh.com", "tcpip-forward", "auth-agent-req@openssh.com"} {
		w.Event(whole, func(e audit.Event) bool { return e.Method == verb && e.Verdict == policy.Deny })
	}
	if found := fileWith(t, w.server.Home, []byte(harness.Output(w.Sh(limited, "cat /etc/hostname")))); found != "" {
		t.Errorf("%s was written", found)
	}
	if out, code := w.Sh(whole, sshTo+at+" ls taken 2>&1"); code == 0 {
		t.Errorf("a command was run: %s", out)
	}
	w.flood(whole, limited, at)
}

// listeners: ports that the client forwards lead nowhere.
func (w *sshWorld) listeners(box, at string) {
	w.T.Helper()
	out := w.MustSh(box, `exec 2>&1; `+sshTo+`-N -L 127.0.0.1:9001:127.0.0.1:22 -L 127.0.0.1:9003:/run/x -D 127.0.0.1:9002 `+at+` & p=$!
bash -c 'for n in 1 2 3; do until (exec 3<>/dev/tcp/127.0.0.1/900$n) 2>/dev/null; do kill -0 '$p' || exit 0; sleep 0.1; done; done'
echo "local: $(timeout 60 bash -c 'exec 3<>/dev/tcp/127.0.0.1/9001; head -c 4 <&3')."
timeout 60 bash -c 'exec 3<>/dev/tcp/127.0.0.1/9003; head -c 4 <&3'
curl -sS -m 60 --socks5 127.0.0.1:9002 http://127.0.0.1:22/ && echo reached; kill $p; wait`)
	if strings.Contains(out, "SSH-") || strings.Contains(out, "reached") || !strings.Contains(out, "local: .") {
		w.T.Errorf("forwarded ports: %s", out)
	}
}

// flood: endless sessions over one connection are bounded, so that other boxes and the next connection work.
func (w *sshWorld) flood(box, other, at string) {
	w.T.Helper()
	out := w.MustSh(box, sshTo+"-M -S /tmp/master -N -f "+at+` </dev/null >/dev/null 2>&1
for n in $(seq 25); do ssh -S /tmp/master `+at+` sleep 3600 </dev/null >/dev/null 2>/tmp/err.$n & done
timeout 60 sh -c 'until cat /tmp/err.* | grep -q -e refused -e "open failed" -e "at most"; do sleep 0.2; done; echo bounded'`)
	harness.Contains(w.T, out, "bounded")
	harness.Contains(w.T, w.MustSh(other, sshTo+at+" echo allowed"), "allowed")
	w.MustSh(box, "ssh -S /tmp/master -O exit "+at+" 2>&1")
	harness.Contains(w.T, w.MustSh(box, sshTo+at+" echo still here"), "still here")
}

// TestSSHOutlivesRestartAndSnapshot: the same box logs in after a restart of the gateway, and so does a box made from
// its snapshot, which trusts its own gateway key and not that of the first box.
func TestSSHOutlivesRestartAndSnapshot(t *testing.T) {
	t.Parallel()
	w := newSSHWorld(t)
	box := w.box(nil)
	login := func(box string) {
		t.Helper()
		harness.Contains(t, w.MustSh(box, sshTo+sshd.User+"@"+forge+" echo in 2>&1"), "in")
	}
	login(box)
	wait := w.Background(box, sshTo+sshd.User+"@"+forge+" 'echo up; sleep 3600' >/tmp/out 2>&1", io.Discard)
	w.MustSh(box, "until grep -q up /tmp/out; do sleep 0.1; done")
	known := w.MustSh(box, "cat /etc/ssh/ssh_known_hosts")
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	_, _ = wait()
	w.StartIfStopped()
	login(box)
	if again := w.MustSh(box, "cat /etc/ssh/ssh_known_hosts"); again != known {
		t.Errorf("the box knows %q, then %q", known, again)
	}
	w.MustSh(box, "timeout 60 sh -c 'while pgrep -x ssh; do sleep 0.1; done'") // the previous connection has ended

	var s, made struct{ ID string }
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "snapshots"), map[string]any{"name": "ssh"}, &s); err != nil {
		t.Fatal(err)
	}
	rule := map[string]any{"user": sshd.User, "key": map[string]string{"secret": "forge-key"}, "host_keys": []string{w.server.HostKey}}
	err := w.Client.Do(t.Context(), "POST", "/v2/box/from-snapshot", map[string]any{
		"snapshot_id": s.ID, "network_policy": harness.Custom(forge + ":22"), "attach_headers": map[string]any{forge + ":22": map[string]any{"ssh": rule}},
	}, &made)
	if err != nil {
		t.Fatal(err)
	}
	login(made.ID)
	if lines := strings.Count(w.MustSh(made.ID, "cat /etc/ssh/ssh_known_hosts"), "boxgate box"); lines != 1 {
		t.Error(fmt.Sprint("the copy knows ", lines, " gateways"))
	}
	if w.MustSh(made.ID, "cat /etc/ssh/ssh_known_hosts") == known {
		t.Error("the copy has the key of the box before")
	}
	w.nothingShown(made.ID)
}

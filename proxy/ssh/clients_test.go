package ssh

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/internal/testnet/sshd"
	sshrule "boxgate/rule/ssh"
)

// A command whose output is no longer read ends: OpenSSH sends eow@openssh.com, and the command gets SIGPIPE.
func TestCommandsEndWithTheirReader(t *testing.T) {
	t.Parallel()
	r := newRig(t, sshrule.Login{}, nil)
	ssh := "ssh " + strings.Join(r.sshArgs(), " ") + " git@127.0.0.1 "
	r.server.Repo("big.git")
	got := r.run("", "sh", "-c", `git init -q -b main w && cd w && head -c 4194304 /dev/urandom >a && git add . && git commit -qm x && git push -q git@127.0.0.1:big.git main`)
	if got.status != 0 {
		t.Fatalf("%+v", got)
	}
	for what, line := range map[string]string{
		"a command":  "timeout 300 " + ssh + "yes",
		"an archive": "timeout 300 git archive --remote=git@127.0.0.1:big.git main",
	} {
		got := r.run("", "sh", "-c", "{ "+line+"; echo status=$? >&2; } | head -c 5 | wc -c")
		if strings.TrimSpace(got.out) != "5" || !strings.Contains(got.err, "status=") || strings.Contains(got.err, "status=124") {
			t.Errorf("%s does not end: %+v", what, got)
		}
	}
	// In the other direction, the server reports that its command reads no more: the client ends its input, and not the
	// session.
	got = r.run("", "sh", "-c", "yes | timeout 300 "+ssh+`"head -n 1 >/dev/null; exec 0</dev/null; echo over"; echo status=$? >&2`)
	if got.out != "over\n" || !strings.Contains(got.err, "status=0") {
		t.Errorf("a command that reads no more: %+v", got)
	}
}

// Clients and servers without AES-GCM and encrypt-then-MAC: libssh2 before 1.11, which Debian 12's curl uses for SFTP.
func TestClientsWithPlainMACs(t *testing.T) {
	t.Parallel()
	r := newRig(t, sshrule.Login{}, func(r *rig) {
		old := sshd.New(r.T, "Ciphers aes256-ctr", "MACs hmac-sha2-256")
		r.server = old
		r.login.Rule.HostKeys = []sshrule.HostKey{hostKey(r.T, old.HostKey, false)}
		dials := listen(r.T)
		go old.Serve(dials)
		r.login.Dial = func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", dials.Addr().String())
		}
	})
	if err := os.WriteFile(filepath.Join(r.server.Home, "file"), []byte("by sftp"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := r.ssh("", "-o", "Ciphers=aes128-ctr", "-o", "MACs=hmac-sha2-256", "echo in"); got.status != 0 {
		t.Errorf("OpenSSH: %+v", got)
	}
	if got := r.run("", "curl", "-sS", "-k", "-u", sshd.User+":", "sftp://"+r.addr.String()+"/~/file"); got.out != "by sftp" {
		t.Errorf("curl: %+v", got)
	}
	for _, mac := range []string{"hmac-sha1", "umac-64@openssh.com"} {
		if got := r.ssh("", "-o", "Ciphers=aes128-ctr", "-o", "MACs="+mac, "echo in"); got.status == 0 {
			t.Errorf("%s is spoken", mac)
		}
	}
}

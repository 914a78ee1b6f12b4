package ssh

import (
	"context"
	"errors"
	"net"
	"os/exec"
	"strings"
	"testing"

	gossh "golang.org/x/crypto/ssh"

	"boxgate/internal/testnet/sshd"
	"boxgate/policy/match"
	"boxgate/policy/name"
	sshrule "boxgate/rule/ssh"
)

// Only the commands that the rule names are run, whatever a client requests.
func TestLimitedLoginsRunNothingElse(t *testing.T) {
	t.Parallel()
	r := newRig(t, sshrule.Login{Repos: []match.RepoRule{{Name: "a/b", Access: "push"}}, Commands: []string{"uptime -p"}}, nil)
	r.server.Repo("a/b.git")
	for _, args := range [][]string{
		{}, {"id"}, {"-s", "sftp"}, {"uptime"}, {"uptime -p; id"},
		{"git-upload-pack 'a/b.git'; id"}, {"git-upload-pack 'a/b.git' 'x'"}, {"git-upload-pack  'a/b.git'"}, {"git-upload-pack a/b.git"},
		{"git-upload-pack --strict 'a/b.git'"}, {"git-upload-pack 'a/b.git''; id'"}, {"git upload-pack 'a/b.git'"}, {"git-shell -c id"},
		{"git-lfs-authenticate 'a/b.git' upload"}, {"git-upload-pack '~/a/b.git'"}, {"git-upload-pack 'a/./b.git'"}, {"git-upload-pack '//a/b.git'"}, {"git-upload-pack 'a/b.git/'"},
	} {
		got := r.ssh("", args...)
		if got.status == 0 || !strings.Contains(got.err, "boxgate: ") || strings.Contains(got.out, "uid=") {
			t.Errorf("%q: %+v", args, got)
		}
	}
	for _, a := range r.asked() {
		if a.Decision.Allowed() || a.Decision.Reason != name.ReasonRequestRule {
			t.Errorf("asked: %+v", a)
		}
	}
	if log := r.server.Log(); strings.Contains(log, "Starting session") {
		t.Errorf("the server ran a command:\n%s", log)
	}
	if got := r.ssh("", "uptime -p"); got.status != 0 {
		t.Errorf("the command that is allowed: %+v", got)
	}
	if got := r.run("", "git", "archive", "--remote=git@127.0.0.1:a/b.git", "HEAD"); strings.Contains(got.err, "boxgate: ") {
		t.Errorf("an archive: %+v", got)
	}
}

// TestLimitedLoginsHaveNoTerminalAndNoLocale: commands of a limited login get neither, in contrast to a login without
// limits: programs read files of their locale, and a terminal turns input into signals.
func TestLimitedLoginsHaveNoTerminalAndNoLocale(t *testing.T) {
	t.Parallel()
	const command = "tty; env"
	for _, limited := range []bool{true, false} {
		rule := sshrule.Login{}
		if limited {
			rule.Commands = []string{command}
		}
		r := newRig(t, rule, nil)
		if got := r.ssh("", "-tt", command); strings.Contains(got.out, "/dev/pts/") == limited || strings.Contains(got.err, "PTY allocation request failed") != limited {
			t.Errorf("limited %v: a terminal: %+v", limited, got)
		}
		got := r.ssh("", "-o", "SetEnv=LANG=box LC_OF=box GIT_PROTOCOL=version=2", command)
		for _, part := range []string{"LANG=box", "LC_OF=box"} {
			if strings.Contains(got.out, part) == limited {
				t.Errorf("limited %v: %s: %+v", limited, part, got)
			}
		}
		if !strings.Contains(got.out, "GIT_PROTOCOL=version=2") {
			t.Errorf("limited %v: what git sends: %+v", limited, got)
		}
	}
}

func TestWithoutLimitsSessionsAreWhole(t *testing.T) {
	t.Parallel()
	r := newRig(t, sshrule.Login{}, nil)
	if got := r.ssh("echo it $((1+1)); exit 3\n"); got.out != "it 2\n" || got.status != 3 {
		t.Errorf("a shell: %+v", got)
	}
	if got := r.ssh("", "-tt", "tty && stty size"); got.status != 0 || !strings.Contains(got.out, "/dev/pts/") {
		t.Errorf("a terminal: %+v", got)
	}
	args := append([]string{"-b", "-"}, r.sshArgs()...)
	args[len(args)-2] = "-P"
	if got := r.run("put /etc/hostname there\nls\n", "sftp", append(args, "git@127.0.0.1")...); got.status != 0 || !strings.Contains(got.out, "there") {
		t.Errorf("sftp: %+v", got)
	}
}

// No request opens a path to elsewhere, in either direction, even if commands are not limited.
func TestNothingIsForwarded(t *testing.T) {
	t.Parallel()
	r := newRig(t, sshrule.Login{}, nil)
	target := listen(t)
	reached := make(chan struct{}, 16)
	go func() {
		for {
			c, err := target.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
			reached <- struct{}{}
		}
	}()
	client := r.client(t)
	if c, err := client.Dial("tcp", target.Addr().String()); err == nil {
		_ = c.Close()
		t.Error("a port of the server's network was reached")
	}
	if c, err := client.Dial("unix", "/run/x"); err == nil {
		_ = c.Close()
		t.Error("a socket of the server was reached")
	}
	if ln, err := client.Listen("tcp", "127.0.0.1:0"); err == nil {
		_ = ln.Close()
		t.Error("the server listens")
	}
	if ln, err := client.ListenUnix("/tmp/boxgate-none"); err == nil {
		_ = ln.Close()
		t.Error("the server listens on a socket")
	}
	for _, kind := range []string{"x11", "auth-agent@openssh.com", "tun@openssh.com", "anything"} {
		if _, _, err := client.OpenChannel(kind, nil); err == nil {
			t.Errorf("a channel %q was opened", kind)
		}
	}
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	for _, request := range []string{"auth-agent-req@openssh.com", "x11-req", "anything"} {
		if ok, _ := session.SendRequest(request, true, nil); ok {
			t.Errorf("the request %q was granted", request)
		}
	}
	out, err := session.CombinedOutput("echo still here")
	if err != nil || string(out) != "still here\n" {
		t.Errorf("%q, %v", out, err)
	}
	if len(reached) > 0 {
		t.Error("a destination was reached")
	}
	verbs := map[string]bool{}
	for _, a := range r.asked() {
		verbs[a.Verb] = a.Decision.Allowed()
	}
	for _, v := range []string{"direct-tcpip", "direct-streamlocal@openssh.com", "tcpip-forward", "streamlocal-forward@openssh.com", "x11", "auth-agent@openssh.com", "auth-agent-req@openssh.com", "x11-req"} {
		if allowed, there := verbs[v]; !there || allowed {
			t.Errorf("no refusal of %q is recorded: %v", v, verbs)
		}
	}
}

// client logs in as a box does, with an arbitrary key.
func (r *rig) client(t *testing.T) *gossh.Client {
	t.Helper()
	private, _ := sshd.NewKey(t)
	key, err := gossh.ParsePrivateKey([]byte(private))
	if err != nil {
		t.Fatal(err)
	}
	client, err := gossh.Dial("tcp", r.addr.String(), &gossh.ClientConfig{
		User: r.login.Rule.User, HostKeyCallback: gossh.FixedHostKey(r.login.Identity.PublicKey()),
		Auth: []gossh.AuthMethod{gossh.PublicKeys(key), gossh.Password("anything")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// A box receives the reason why it was not logged in, without anything of the key.
func TestFailures(t *testing.T) {
	t.Parallel()
	const canary = "c4n4ry"
	other, otherPublic := sshd.NewKey(t)
	for label, c := range map[string]struct {
		change func(*testing.T, *rig)
		shown  string
		reason name.Reason
	}{
		"another user":     {func(_ *testing.T, r *rig) { r.login.Rule.User = "root" }, "allows only the user root", name.ReasonHeaderRule},
		"no source":        {func(_ *testing.T, r *rig) { r.login.Key = failing }, "is not available", name.ReasonSecretUnavailable},
		"no key":           {func(_ *testing.T, r *rig) { r.login.Key = fixed(canary) }, "cannot be used", name.ReasonSecretUnavailable},
		"a passphrase":     {func(t *testing.T, r *rig) { r.login.Key = fixed(locked(t)) }, "cannot be used", name.ReasonSecretUnavailable},
		"another key":      {func(_ *testing.T, r *rig) { r.login.Key = fixed(other) }, "did not accept the key", name.ReasonUpstreamLogin},
		"no host key":      {func(_ *testing.T, r *rig) { r.login.Rule.HostKeys = []sshrule.HostKey{} }, "no valid host key", name.ReasonUpstreamTLS},
		"another host key": {func(t *testing.T, r *rig) { r.login.Rule.HostKeys = []sshrule.HostKey{hostKey(t, otherPublic, false)} }, "is not in the rule", name.ReasonUpstreamTLS},
		"no authority": {func(t *testing.T, r *rig) {
			r.login.Rule.HostKeys = []sshrule.HostKey{hostKey(t, r.server.HostKey, true)}
		}, "no host key of a type", name.ReasonUpstreamTLS},
		"a server that is away": {func(_ *testing.T, r *rig) { _ = r.dials.Close() }, "could not be reached", name.ReasonUnreachable},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, sshrule.Login{}, func(r *rig) { c.change(t, r) })
			got := r.ssh("", "id")
			if got.status != 255 || !strings.Contains(got.err, "boxgate: ") || !strings.Contains(got.err, c.shown) || strings.Contains(got.err, canary) {
				t.Errorf("got %+v", got)
			}
			r.conns.Wait()
			var failure *Failure
			if err := r.failure(); !errors.As(err, &failure) || failure.Reason != c.reason || strings.Contains(err.Error(), canary) {
				t.Errorf("the connection ended with %v", err)
			}
			if len(r.asked()) > 0 {
				t.Error("a command was passed to OnRequest")
			}
		})
	}
}

func failing(context.Context) (name.Secret, error) {
	return name.Secret{}, errors.New("no such file")
}

func fixed(key string) func(context.Context) (name.Secret, error) {
	return func(context.Context) (name.Secret, error) { return name.NewSecret(key), nil }
}

// locked returns a key with a passphrase.
func locked(t *testing.T) string {
	t.Helper()
	path := t.TempDir() + "/key"
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "passphrase", "-f", path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(read(t, path))
}

// The server receives only the user's name and a signature, and neither before its host key was verified.
func TestAServerThatIsNotTheOneLearnsNothing(t *testing.T) {
	t.Parallel()
	private, _ := sshd.NewKey(t)
	impostor, err := gossh.ParsePrivateKey([]byte(private))
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 16)
	config := &gossh.ServerConfig{
		NoClientAuth:         true,
		NoClientAuthCallback: func(m gossh.ConnMetadata) (*gossh.Permissions, error) { asked <- m.User(); return nil, nil },
		PublicKeyCallback: func(m gossh.ConnMetadata, _ gossh.PublicKey) (*gossh.Permissions, error) {
			asked <- m.User()
			return nil, nil
		},
	}
	config.AddHostKey(impostor)
	ln := listen(t)
	go func() {
		c, err := ln.Accept()
		if err == nil {
			_, _, _, _ = gossh.NewServerConn(c, config)
			_ = c.Close()
		}
		close(asked)
	}()
	r := newRig(t, sshrule.Login{}, func(r *rig) {
		r.login.Dial = func(context.Context) (net.Conn, error) { return net.Dial("tcp", ln.Addr().String()) }
	})
	if got := r.ssh("", "id"); got.status != 255 {
		t.Errorf("got %+v", got)
	}
	for user := range asked {
		t.Errorf("the impostor received the login %q", user)
	}
}

func TestCertificatesOfHosts(t *testing.T) {
	t.Parallel()
	private, public := sshd.NewKey(t)
	authority, err := gossh.ParsePrivateKey([]byte(private))
	if err != nil {
		t.Fatal(err)
	}
	for name, works := range map[string]bool{"git.example.com": true, "other.example.com": false} {
		r := newRig(t, sshrule.Login{HostKeys: []sshrule.HostKey{hostKey(t, public, true)}}, func(r *rig) { r.server.Certify(authority, name) })
		if got := r.ssh("", "true"); (got.status == 0) != works {
			t.Errorf("a certificate for %s: %+v", name, got)
		}
	}
}

package ssh

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	gossh "golang.org/x/crypto/ssh"

	"boxgate/internal/memory"
	"boxgate/internal/testnet/sshd"
	"boxgate/policy/match"
	"boxgate/policy/name"
	sshrule "boxgate/rule/ssh"
)

// rig is a gateway that logs in to a server, and a box's clients.
type rig struct {
	*testing.T
	server *sshd.Server
	login  Login
	budget *memory.Budget
	addr   *net.TCPAddr // of the gateway
	known  string       // file with its host key
	dials  net.Listener // listener that Dial connects to the server

	mu    sync.Mutex
	asks  []Request
	ends  []Outcome
	errs  []error
	conns sync.WaitGroup
}

func mustName(t *testing.T, s string) name.Name {
	t.Helper()
	n, err := name.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func hostKey(t testing.TB, line string, authority bool) sshrule.HostKey {
	t.Helper()
	key, _, _, _, err := gossh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	return sshrule.HostKey{Authority: authority, Blob: string(key.Marshal())}
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

// newRig runs a gateway in front of a server. change may change the login before it is used.
func newRig(t *testing.T, rule sshrule.Login, change func(*rig)) *rig {
	t.Helper()
	r := &rig{T: t, server: sshd.New(t), dials: listen(t), budget: memory.New(256<<20, 256<<20)}
	go r.server.Serve(r.dials)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := gossh.NewSignerFromSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	if rule.User == "" {
		rule.User = sshd.User
	}
	if rule.HostKeys == nil {
		rule.HostKeys = []sshrule.HostKey{hostKey(t, r.server.HostKey, false)}
	}
	r.login = Login{
		Rule: &rule, Host: mustName(t, "git.example.com"), Port: 22, Identity: identity,
		Key: func(context.Context) (name.Secret, error) {
			return name.NewSecret(strings.TrimSpace(r.server.Key)), nil
		},
		Dial: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", r.dials.Addr().String())
		},
		Log: zap.NewNop(), Memory: r.budget.Account("box"), OnLogin: func() {}, OnRequest: r.ask, Handshake: time.Minute, Idle: time.Hour,
	}
	if change != nil {
		change(r)
	}
	r.known = filepath.Join(t.TempDir(), "known_hosts")
	line := "* " + string(gossh.MarshalAuthorizedKey(identity.PublicKey()))
	if err := os.WriteFile(r.known, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	r.serve()
	return r
}

func (r *rig) serve() {
	ln := listen(r.T)
	r.addr = ln.Addr().(*net.TCPAddr)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			r.conns.Go(func() {
				defer c.Close()
				err := Serve(ctx, c, r.login)
				r.mu.Lock()
				defer r.mu.Unlock()
				r.errs = append(r.errs, err)
			})
		}
	}()
	r.Cleanup(func() {
		_ = ln.Close()
		cancel()
		r.conns.Wait()
		for _, k := range memory.Kinds() {
			if held := r.budget.InUse(k); held != 0 {
				r.Errorf("%d bytes of %v are still held", held, k)
			}
		}
	})
}

func (r *rig) ask(a Request) (func(Outcome), bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asks = append(r.asks, a)
	return func(o Outcome) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ends = append(r.ends, o)
	}, true
}

// asked returns the requests so far.
func (r *rig) asked() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Request(nil), r.asks...)
}

// failure returns the failures of connections so far.
func (r *rig) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.errs...)
}

func (r *rig) sshArgs() []string {
	return []string{
		"-F", "none", "-o", "UserKnownHostsFile=" + r.known, "-o", "GlobalKnownHostsFile=none", "-o", "StrictHostKeyChecking=yes",
		"-o", "IdentityFile=none", "-o", "IdentityAgent=none", "-o", "BatchMode=yes", "-p", portOf(r.addr),
	}
}

func portOf(a *net.TCPAddr) string { _, port, _ := net.SplitHostPort(a.String()); return port }

type result struct {
	out, err string
	status   int
}

// run runs a client in the box.
func (r *rig) run(stdin string, name string, args ...string) result {
	r.Helper()
	cmd := exec.CommandContext(r.Context(), name, args...)
	home := r.TempDir()
	cmd.Dir = home
	cmd.Env = []string{
		"HOME=" + home, "PATH=" + os.Getenv("PATH"), "GIT_SSH_COMMAND=ssh " + strings.Join(r.sshArgs(), " "), "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com",
	}
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.Fatal(err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

func (r *rig) ssh(stdin string, args ...string) result {
	r.Helper()
	return r.run(stdin, "ssh", append(append(r.sshArgs(), sshd.User+"@127.0.0.1"), args...)...)
}

func TestCommandsAndTheirStreams(t *testing.T) {
	t.Parallel()
	r := newRig(t, sshrule.Login{}, nil)
	got := r.ssh("from the box", "cat; echo oops >&2; exit 7")
	if got.out != "from the box" || !strings.Contains(got.err, "oops") || got.status != 7 {
		t.Errorf("got %+v", got)
	}
	if got := r.ssh("", "echo $LANG $SSH_CONNECTION; whoami"); !strings.Contains(got.out, sshd.User) {
		t.Errorf("got %+v", got)
	}
	if got := r.ssh("", "kill -TERM $$"); got.status == 0 {
		t.Errorf("a command that was killed: %+v", got)
	}
	asks := r.asked()
	if len(asks) != 3 || asks[0].Verb != "exec" || asks[0].What != "cat;" || !asks[0].Decision.Allowed() {
		t.Errorf("asked: %+v", asks)
	}
}

// A transfer is larger than all windows, with a slow reader at the beginning and a key exchange in its course.
func TestTransfersAreWhole(t *testing.T) {
	t.Parallel()
	r := newRig(t, sshrule.Login{}, nil)
	const size = "33554432"
	got := r.run("", "sh", "-c", "ssh -o RekeyLimit=8M "+strings.Join(r.sshArgs(), " ")+" git@127.0.0.1 head -c "+size+" /dev/zero | (read -r x </dev/null; wc -c)")
	if strings.TrimSpace(got.out) != size {
		t.Errorf("from the server: %+v", got)
	}
	got = r.run("", "sh", "-c", "head -c "+size+" /dev/zero | ssh -o RekeyLimit=8M "+strings.Join(r.sshArgs(), " ")+" git@127.0.0.1 wc -c")
	if strings.TrimSpace(got.out) != size {
		t.Errorf("to the server: %+v", got)
	}
}

func TestGitPullsAndPushes(t *testing.T) {
	t.Parallel()
	r := newRig(t, sshrule.Login{Repos: []match.RepoRule{{Name: "owner/mine", Access: "push"}, {Name: "owner/lib", Access: "read"}}}, nil)
	r.server.Repo("owner/mine.git")
	r.server.Repo("owner/lib.git")
	r.server.Repo("owner/other.git")
	push := func(repo string) result {
		return r.run("", "sh", "-c", "git init -q -b main w && cd w && echo x >f && git add f && git commit -q -m x && git push -q git@127.0.0.1:"+repo+" main")
	}
	if got := push("owner/mine.git"); got.status != 0 {
		t.Fatalf("push: %+v\n%s", got, r.server.Log())
	}
	if got := r.run("", "sh", "-c", "git clone -q git@127.0.0.1:owner/mine w && cat w/f"); got.status != 0 || got.out != "x\n" {
		t.Errorf("clone: %+v", got)
	}
	if got := r.run("", "git", "clone", "-q", "git@127.0.0.1:owner/lib"); got.status != 0 {
		t.Errorf("clone with access read: %+v", got)
	}
	for what, got := range map[string]result{
		"push with access read":     push("owner/lib.git"),
		"push without a rule":       push("owner/other.git"),
		"clone without a rule":      r.run("", "git", "clone", "-q", "git@127.0.0.1:owner/other.git"),
		"clone by way of the other": r.run("", "git", "clone", "-q", "git@127.0.0.1:owner/lib/../other.git"),
	} {
		if got.status == 0 || !strings.Contains(got.err, "boxgate: ") {
			t.Errorf("%s: %+v", what, got)
		}
	}
	if _, err := os.Stat(filepath.Join(r.server.Home, "owner/lib.git/refs/heads/main")); err == nil {
		t.Error("a push succeeded with access read")
	}
	for _, a := range r.asked() {
		t.Logf("%s %s %v %s", a.Verb, a.What, a.Decision.Verdict, a.Decision.Rule)
	}
}

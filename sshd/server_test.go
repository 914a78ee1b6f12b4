package sshd

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"
	gossh "golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"boxgate/internal/sshflow"
	"boxgate/policy"
)

// rig is a server with one box and one password, whose commands are functions of the test.
type rig struct {
	t       *testing.T
	server  *Server
	address string
	signer  gossh.Signer

	mu      sync.Mutex
	run     func(context.Context, Command, Streams, func(Process)) (int, error)
	known   gossh.PublicKey
	limited bool // no more memory
	valid   atomic.Bool
	claimed atomic.Int64

	refusals atomic.Int64
}

const password = "right"

func newKey(t testing.TB) gossh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := gossh.NewSignerFromSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func newRig(t *testing.T) *rig { t.Helper(); return newRigWith(t, func(*Server) {}) }

func newRigWith(t *testing.T, change func(*Server)) *rig {
	t.Helper()
	r := &rig{t: t, signer: newKey(t)}
	r.known = r.signer.PublicKey()
	r.valid.Store(true)
	r.run = func(context.Context, Command, Streams, func(Process)) (int, error) { return 0, nil }
	var err error
	if r.server, err = New(Config{HostKey: newKey(t), Log: zap.NewNop()}); err != nil {
		t.Fatal(err)
	}
	change(r.server)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.address = ln.Addr().String()
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(ln, r) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, c := range r.server.clients(func(*client) bool { return true }) {
			c.cut()
		}
		if err := r.server.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return r
}

// Password implements [Gate].
func (r *rig) Password(box, key string) (Login, bool) { return r, box == "box1" && key == password }

// PublicKey implements [Gate].
func (r *rig) PublicKey(box string, key gossh.PublicKey) (Login, bool) {
	return r, box == "box1" && bytes.Equal(key.Marshal(), r.known.Marshal())
}

// Refused implements [Gate].
func (r *rig) Refused(string) { r.refusals.Add(1) }

// Box implements [Login].
func (r *rig) Box() policy.BoxID { return "box1" }

// Key implements [Login].
func (r *rig) Key() string { return "key_1" }

// Valid implements [Login].
func (r *rig) Valid() bool { return r.valid.Load() }

// Count implements [Login].
func (r *rig) Count(net.Conn) (sshflow.Claim, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.limited {
		return nil, errors.New("too many")
	}
	return rigClaim{r}, nil
}

type rigClaim struct{ r *rig }

// Grow implements [sshflow.Claim].
func (c rigClaim) Grow(n int) bool { c.r.claimed.Add(int64(n)); return true }

// Shrink implements [sshflow.Claim].
func (c rigClaim) Shrink(n int) { c.r.claimed.Add(-int64(n)) }

// Close implements [sshflow.Claim].
func (c rigClaim) Close() {}

// Run implements [Login].
func (r *rig) Run(ctx context.Context, c Command, s Streams, started func(Process)) (Exit, error) {
	r.mu.Lock()
	run := r.run
	r.mu.Unlock()
	code, err := run(ctx, c, s, started)
	exit := Exit{Status: code}
	if code > 128 {
		exit.Signal = strings.TrimPrefix(unix.SignalName(unix.Signal(code-128)), "SIG")
	}
	return exit, err
}

// Transfer implements [Login].
func (r *rig) Transfer(_ context.Context, stream io.ReadWriter) error {
	_, err := io.Copy(stream, stream)
	return err
}

// Forward implements [Login].
func (r *rig) Forward(context.Context, uint16) (Port, error) { return nil, errors.New("refused") }

func (r *rig) login(auth ...gossh.AuthMethod) (*gossh.Client, error) {
	c, err := gossh.Dial("tcp", r.address, &gossh.ClientConfig{User: "box1", Auth: auth, HostKeyCallback: gossh.FixedHostKey(r.server.cfg.HostKey.PublicKey())})
	if err == nil {
		r.t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

func (r *rig) mustLogin() *gossh.Client {
	r.t.Helper()
	c, err := r.login(gossh.Password(password))
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rig) set(run func(context.Context, Command, Streams, func(Process)) (int, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.run = run
}

// logins returns the number of logins with a result.
func (r *rig) logins(result string) float64 {
	var m dto.Metric
	if err := r.server.logins.WithLabelValues(result).Write(&m); err != nil {
		r.t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("did not happen: " + what)
		}
	}
}

// TestLogins: passwords and public keys log in, weak algorithms do not connect, and a wrong password or key is answered late.
func TestLogins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, auth := range []gossh.AuthMethod{gossh.Password(password), gossh.PublicKeys(r.signer), gossh.PublicKeys(newKey(t), newKey(t), r.signer)} {
		if _, err := r.login(auth); err != nil {
			t.Error(err)
		}
	}
	began := time.Now()
	if _, err := r.login(gossh.Password("wrong")); err == nil || time.Since(began) < failTime {
		t.Errorf("a wrong password: %v after %v", err, time.Since(began))
	}
	var many []gossh.Signer
	for range maxTries {
		many = append(many, newKey(t))
	}
	began = time.Now()
	if _, err := r.login(gossh.PublicKeys(append(many, r.signer)...)); err == nil || time.Since(began) < maxTries*keyFailTime {
		t.Errorf("a login after too many keys: %v after %v", err, time.Since(began))
	}
	for what, weak := range map[string]gossh.Config{
		"a group of 1024 bits": {KeyExchanges: []string{gossh.InsecureKeyExchangeDH1SHA1}}, "SHA-1": {MACs: []string{gossh.HMACSHA1}, Ciphers: []string{gossh.CipherAES128CTR}},
		"CBC": {Ciphers: []string{gossh.InsecureCipherAES128CBC}}, "RC4": {Ciphers: []string{gossh.InsecureCipherRC4256}},
	} {
		c, err := gossh.Dial("tcp", r.address, &gossh.ClientConfig{Config: weak, User: "box1", Auth: []gossh.AuthMethod{gossh.Password(password)}, HostKeyCallback: gossh.InsecureIgnoreHostKey()}) //nolint:gosec // of a test
		if err == nil {
			_ = c.Close()
			t.Error(what)
		}
	}
	r.mu.Lock()
	r.limited = true
	r.mu.Unlock()
	if c, err := r.login(gossh.Password(password)); err == nil {
		if _, err := c.NewSession(); err == nil {
			t.Error("a connection above the limit")
		}
	}
	until(t, "the metrics", func() bool {
		return r.logins(byPassword) == 1 && r.logins(byPublicKey) == 2 && r.logins(overLimit) == 1 && r.refusals.Load() == 2
	})
}

// TestSessionsOfClients: input, output, signals and exit statuses reach the other side, also early ones.
func TestSessionsOfClients(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.mustLogin()
	r.set(func(_ context.Context, c Command, s Streams, started func(Process)) (int, error) {
		started(noProcess{})
		data, err := io.ReadAll(s.In)
		_, _ = s.Out.Write(append(data, c.Line+c.Env["A"]...))
		_, _ = io.WriteString(s.Err, "err")
		return 9, err
	})
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	var out, stderr bytes.Buffer
	s.Stdin, s.Stdout, s.Stderr = strings.NewReader("in "), &out, &stderr
	_ = s.Setenv("A", "+a")
	exit, ok := errors.AsType[*gossh.ExitError](s.Run("line"))
	if !ok || exit.ExitStatus() != 9 || out.String() != "in line+a" || stderr.String() != "err" {
		t.Errorf("%v: %q, %q", exit, out.String(), stderr.String())
	}

	for status, signal := range map[int]string{128 + 9: "KILL", 128 + 15: "TERM", 128 + int(unix.SIGSYS): "", 7: ""} {
		r.set(func(context.Context, Command, Streams, func(Process)) (int, error) { return status, nil })
		if s, err = c.NewSession(); err != nil {
			t.Fatal(err)
		}
		if exit, ok := errors.AsType[*gossh.ExitError](s.Run("line")); !ok || exit.ExitStatus() != status || exit.Signal() != signal {
			t.Errorf("%v, want %d and %q", exit, status, signal)
		}
	}

	got := make(chan string, 1)
	r.set(func(ctx context.Context, _ Command, _ Streams, started func(Process)) (int, error) {
		started(noProcess{got})
		<-ctx.Done()
		return 0, ctx.Err()
	})
	if s, err = c.NewSession(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Start("x"), s.Signal(gossh.SIGTERM)); err != nil || <-got != "TERM" {
		t.Errorf("a signal: %v", err)
	}
	if err := s.Start("y"); err == nil {
		t.Error("a second command of a session")
	}
	if err := s.Setenv("B", "late"); err == nil {
		t.Error("a variable after the command")
	}
	_ = s.Close()
	r.set(func(context.Context, Command, Streams, func(Process)) (int, error) {
		return 0, errors.New("no such box\x1b[2J")
	})
	if s, err = c.NewSession(); err != nil {
		t.Fatal(err)
	}
	if out, err := s.CombinedOutput("x"); err == nil || string(out) != "boxgate: no such box\uFFFD[2J\r\n" {
		t.Errorf("%q, %v", out, err)
	}
}

type noProcess struct{ signals chan string }

// Signal implements [Process].
func (p noProcess) Signal(name string) error {
	if p.signals != nil {
		p.signals <- name
	}
	return nil
}

// Resize implements [Process].
func (noProcess) Resize(Terminal) error { return nil }

// TestRecheckCuts: a connection whose login has ended is cut before Recheck returns, and so is its command.
func TestRecheckCuts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.mustLogin()
	started, ended := make(chan struct{}), make(chan struct{})
	r.set(func(ctx context.Context, _ Command, _ Streams, _ func(Process)) (int, error) {
		close(started)
		<-ctx.Done()
		close(ended)
		return 0, ctx.Err()
	})
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("x"); err != nil {
		t.Fatal(err)
	}
	<-started
	r.server.Recheck()
	select {
	case <-ended:
		t.Fatal("a valid login was cut")
	default:
	}
	r.valid.Store(false)
	r.server.Recheck()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the command of a login that has ended goes on")
	}
	_ = c.Wait()
	until(t, "the connection is forgotten", func() bool { return r.server.Open() == 0 })
	if c, err := r.login(gossh.Password(password)); err == nil {
		if _, err := c.NewSession(); err == nil {
			t.Error("a session of a login that has ended")
		}
	}
}

// TestUnreadInputIsBounded: a command that does not read makes the gateway hold no more than the flow's limit, however small the
// packets are.
func TestUnreadInputIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.mustLogin()
	release := make(chan struct{})
	r.set(func(_ context.Context, _ Command, s Streams, _ func(Process)) (int, error) {
		<-release
		_, err := io.Copy(io.Discard, s.In)
		return 0, err
	})
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	in, _ := s.StdinPipe()
	if err := s.Start("x"); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() {
		for range 400_000 {
			if _, err := in.Write([]byte{0}); err != nil {
				sent <- err
				return
			}
		}
		sent <- in.Close()
	}()
	most := int64(0)
	for most < sshflow.Cost*sshflow.Most-2*sshflow.Step && len(sent) == 0 {
		most = max(most, r.claimed.Load())
		time.Sleep(time.Millisecond)
	}
	if most > sshflow.Cost*sshflow.Most || len(sent) > 0 {
		t.Errorf("%d bytes are held; all was read: %v", most, len(sent) > 0)
	}
	close(release)
	if err := errors.Join(<-sent, s.Wait()); err != nil {
		t.Error(err)
	}
}

// TestRetiredServers take neither connections nor channels, and Shutdown waits for the sessions that run.
func TestRetiredServers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.mustLogin()
	started, release := make(chan struct{}), make(chan struct{})
	r.set(func(context.Context, Command, Streams, func(Process)) (int, error) {
		close(started)
		<-release
		return 3, nil
	})
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("x"); err != nil {
		t.Fatal(err)
	}
	<-started
	r.server.Retire()
	if _, err := c.NewSession(); err == nil {
		t.Error("a session of a retired server")
	}
	if _, err := r.login(gossh.Password(password)); err == nil {
		t.Error("a login to a retired server")
	}
	done := make(chan error, 1)
	go func() { done <- r.server.Shutdown(t.Context()) }()
	close(release)
	if exit, ok := errors.AsType[*gossh.ExitError](s.Wait()); !ok || exit.ExitStatus() != 3 {
		t.Errorf("the session that ran: %v", exit)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestFloodsOfOneConnection: requests and channels without end neither stop other connections nor stay in memory.
func TestFloodsOfOneConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hostile, other := r.mustLogin(), r.mustLogin()
	var opened []gossh.Channel
	for range 3 * maxChannels {
		c, requests, err := hostile.OpenChannel("session", nil)
		if err != nil {
			continue
		}
		go gossh.DiscardRequests(requests)
		opened = append(opened, c)
	}
	if len(opened) != maxChannels {
		t.Errorf("%d channels", len(opened))
	}
	var floods sync.WaitGroup
	floods.Go(func() {
		for range 5_000 {
			if _, _, err := hostile.SendRequest("flood", false, make([]byte, 100)); err != nil {
				return
			}
		}
	})
	for _, c := range opened {
		floods.Go(func() {
			for range 200 {
				_, _ = c.SendRequest("env", false, gossh.Marshal(struct{ Name, Value string }{"A", strings.Repeat("x", 1000)}))
				_, _ = c.SendRequest("signal", false, gossh.Marshal(struct{ Name string }{"TERM"}))
				_, _ = c.SendRequest("window-change", false, make([]byte, 16))
			}
			_ = c.Close()
		})
	}
	s, err := other.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run("x"); err != nil {
		t.Errorf("another connection: %v", err)
	}
	floods.Wait()
	until(t, "the channels are closed", func() bool {
		c, requests, err := hostile.OpenChannel("session", nil)
		if err != nil {
			return false
		}
		go gossh.DiscardRequests(requests)
		_ = c.Close()
		return true
	})
}

// TestStrangersEnd: a client that sends more than a login needs is cut before its time is over, and its handler ends.
func TestStrangersEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	began := time.Now()
	for range 20 { // each leaves data unread
		if _, err := r.login(gossh.Password(strings.Repeat("x", 200_000))); err == nil {
			t.Fatal("logged in")
		}
	}
	soon, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.server.loops.Wait(soon); err != nil {
		t.Fatalf("the handlers of strangers stay: %v", err)
	}
	if took := time.Since(began); took > loginTime {
		t.Errorf("20 strangers were served for %v", took)
	}
}

// TestRetiredServersCheckLogins: the connections that a retired server still has end with their API keys.
func TestRetiredServersCheckLogins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.mustLogin()
	r.set(func(ctx context.Context, _ Command, _ Streams, _ func(Process)) (int, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	})
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("x"); err != nil {
		t.Fatal(err)
	}
	r.server.Retire()
	r.valid.Store(false)
	until(t, "the connection is cut", func() bool { return r.server.Open() == 0 })
}

// TestVanishedClients: a connection ends with its client, also if so much input of commands waits that nothing is read.
func TestVanishedClients(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	conn, err := net.Dial("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	transport, channels, requests, err := gossh.NewClientConn(conn, r.address, &gossh.ClientConfig{
		User: "box1", Auth: []gossh.AuthMethod{gossh.Password(password)}, HostKeyCallback: gossh.FixedHostKey(r.server.cfg.HostKey.PublicKey()),
	})
	if err != nil {
		t.Fatal(err)
	}
	c := gossh.NewClient(transport, channels, requests)
	r.set(func(ctx context.Context, _ Command, _ Streams, _ func(Process)) (int, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	})
	var inputs []io.Writer
	for range 6 { // each may send two MiB ahead
		s, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		in, _ := s.StdinPipe()
		if err := s.Start("x"); err != nil {
			t.Fatal(err)
		}
		inputs = append(inputs, in)
	}
	var senders sync.WaitGroup
	for _, in := range inputs {
		senders.Go(func() { _, _ = in.Write(make([]byte, 4<<20)) })
	}
	until(t, "nothing is read", func() bool { return r.claimed.Load() > sshflow.Cost*(sshflow.Most-2*sshflow.Step) })
	_ = conn.(*net.TCPConn).SetLinger(0) // otherwise the kernel retries for minutes to send the rest
	_ = c.Close()
	senders.Wait()
	until(t, "the connection is cut", func() bool { return r.server.Open() == 0 })
}

// TestLoginsTakeNoLonger: clients that do not log in are gone when their time is over, wherever they stopped; others stay.
func TestLoginsTakeNoLonger(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, func(s *Server) { s.loginTime = 2 * time.Second })
	stays := r.mustLogin()
	var ended sync.WaitGroup
	for what, sent := range map[string]string{
		"silence": "", "half a greeting": "SSH-2.0-x", "greetings": strings.Repeat("x\r\n", 100), "no key exchange": "SSH-2.0-x\r\n", "a packet that never ends": "SSH-2.0-x\r\n\x00\x00\x80\x00\x04",
	} {
		c, err := net.Dial("tcp", r.address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(c, sent)
		ended.Go(func() {
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: the client stays", what)
			}
		})
	}
	for _, auth := range []gossh.AuthMethod{
		gossh.PasswordCallback(func() (string, error) { <-t.Context().Done(); return "", t.Context().Err() }),
		gossh.PublicKeysCallback(func() ([]gossh.Signer, error) { <-t.Context().Done(); return nil, t.Context().Err() }),
	} {
		go func() { _, _ = r.login(auth) }()
	}
	ended.Wait()
	until(t, "the clients that hesitate are gone", func() bool { return r.logins(refused) == 7 })
	s, err := stays.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run("x"); err != nil {
		t.Errorf("the client that has logged in: %v", err)
	}
}

package lifecycle

import (
	"bufio"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"boxgate/config"
	"boxgate/e2e/harness"
)

// sshAt is ssh.listen in the gateway's network namespace.
const sshAt = "127.0.0.1:2222"

// sshClient logs in to a box with an API key, and returns the host key that the gateway has shown.
func (u *upgrading) sshClient(box, key string) (*gossh.Client, string, error) {
	u.T.Helper()
	var conn net.Conn
	if err := u.Net.Gateway().Do(func() (err error) {
		conn, err = net.Dial("tcp", sshAt)
		return err
	}); err != nil {
		return nil, "", err
	}
	shown := ""
	_ = conn.SetDeadline(time.Now().Add(harness.Patience))
	c, channels, requests, err := gossh.NewClientConn(conn, "gateway", &gossh.ClientConfig{
		User: box, Auth: []gossh.AuthMethod{gossh.Password(key)},
		HostKeyCallback: func(_ string, _ net.Addr, k gossh.PublicKey) error { shown = gossh.FingerprintSHA256(k); return nil },
	})
	if err != nil {
		_ = conn.Close()
		return nil, shown, err
	}
	client := gossh.NewClient(c, channels, requests)
	u.T.Cleanup(func() { _ = client.Close() })
	return client, shown, nil
}

// TestSSHDuringAnUpgrade: the listener and the host key stay, a running session goes on in the old process, new channels need a new
// connection, and a revoked API key cuts the session there.
func TestSSHDuringAnUpgrade(t *testing.T) {
	t.Parallel()
	u := newUpgrading(t, func(c *config.Config) { c.SSH.Listen = sshAt })
	if err := u.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	box := u.Create(map[string]any{})
	var made struct{ Key string }
	if err := u.Client.Do(t.Context(), "POST", "/v2/api-keys", map[string]any{"name": "ada", "role": "admin"}, &made); err != nil {
		t.Fatal(err)
	}
	before, shown, err := u.sshClient(box, made.Key)
	if err != nil {
		t.Fatal(err)
	}
	session, err := before.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	in, _ := session.StdinPipe()
	pipe, _ := session.StdoutPipe()
	out := bufio.NewReader(pipe)
	if err := session.Start("while read line; do echo got $line; done"); err != nil {
		t.Fatal(err)
	}
	say := func(word string) {
		t.Helper()
		_, _ = in.Write([]byte(word + "\n"))
		if got, err := out.ReadString('\n'); got != "got "+word+"\n" {
			t.Errorf("%q, %v", got, err)
		}
	}
	say("before")
	u.mustReplace("upgrade")
	say("after")
	if _, err := before.NewSession(); err == nil || !strings.Contains(err.Error(), "connect again") {
		t.Errorf("a new session of an old connection: %v", err)
	}
	after, again, err := u.sshClient(box, made.Key)
	if err != nil || again != shown || shown == "" {
		t.Fatalf("the host key was %s and is %s: %v", shown, again, err)
	}
	if s, err := after.NewSession(); err != nil {
		t.Error(err)
	} else if got, err := s.Output("echo works"); string(got) != "works\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	say("later")
	if err := u.Client.Do(t.Context(), "DELETE", "/v2/api-keys/ada", nil, nil); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]*gossh.Client{"before": before, "after": after} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		ended := make(chan struct{})
		go func() { _ = c.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-ctx.Done():
			t.Errorf("the connection from %s the upgrade outlives its API key", what)
		}
		cancel()
	}
}

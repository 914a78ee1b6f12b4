package visitors

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"boxgate/e2e/harness"
)

// proxyCommand is the one in docs/urls.md for SSH.
const proxyCommand = "openssl s_client -quiet -verify_return_error -verify_hostname %h -servername %h -connect %h:443"

// TestSSHByRawTCP: OpenSSH logs in to a server in a box by a public URL of raw TCP, as documented, and transfers a
// command's input and output. A client with a key unknown to the server is refused by the server.
func TestSSHByRawTCP(t *testing.T) {
	t.Parallel()
	friend, stranger, server := newSSHKey(t), newSSHKey(t), newSSHKey(t)
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if string(key.Marshal()) != string(friend.PublicKey().Marshal()) {
			return nil, os.ErrPermission
		}
		return nil, nil
	}}
	config.AddHostKey(server)
	s := newService(t, func(ln net.Listener) {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				sayBackBySSH(c, config)
			}()
		}
	}, map[string]any{"protocol": "tcp"})
	home := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(home, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	hosts := write("hosts", s.gateway+" "+s.host+"\n")
	known := write("known", s.host+" "+string(ssh.MarshalAuthorizedKey(server.PublicKey())))
	logIn := func(key sshKey) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
		defer cancel()
		// ssh ends its proxy command with SIGHUP, which a command inherits as ignored if the tests run under nohup.
		script := `printf 'a %s' line | SSL_CERT_FILE="$1" exec env --default-signal=HUP ssh -F none -o BatchMode=yes -o IdentitiesOnly=yes -o UserKnownHostsFile="$2" -o ProxyCommand="$3" -i "$4" user@"$5" cat`
		return s.run(ctx, home, "unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`, hosts,
			"sh", "-c", script, "sh", s.roots, known, proxyCommand, write("key", key.text), s.host)
	}
	if out, err := logIn(friend); err != nil || !strings.HasSuffix(out, "cat: a line") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := logIn(stranger); err == nil || !strings.Contains(out, "Permission denied (publickey)") {
		t.Errorf("another key: %v\n%s", err, out)
	}
}

// sshKey is a key pair, and its text for OpenSSH.
type sshKey struct {
	ssh.Signer
	text string
}

func newSSHKey(t *testing.T) sshKey {
	t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return sshKey{signer, string(pem.EncodeToMemory(block))}
}

// sayBackBySSH serves one client. Each command outputs its name and its input.
func sayBackBySSH(c net.Conn, config *ssh.ServerConfig) {
	conn, channels, requests, err := ssh.NewServerConn(c, config)
	if err != nil {
		return
	}
	defer conn.Close()
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		channel, asked, err := offered.Accept()
		if err != nil {
			return
		}
		go func() {
			defer channel.Close()
			for r := range asked {
				_ = r.Reply(r.Type == "exec", nil)
				var command struct{ Line string }
				if r.Type != "exec" || ssh.Unmarshal(r.Payload, &command) != nil {
					continue
				}
				_, _ = io.WriteString(channel, command.Line+": ")
				_, _ = io.Copy(channel, channel)
				_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{}))
				return
			}
		}()
	}
}

package ssh

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"boxgate/e2e/harness"
)

// TestOpenSSH uses a box with OpenSSH's client: commands with their input, output and exit status, a terminal, the environment.
func TestOpenSSH(t *testing.T) {
	t.Parallel()
	w := shared(t)
	box := w.Create(map[string]any{"name": fmt.Sprintf("ssh-%d", time.Now().UnixNano())})
	name, _ := w.apiKey("admin", nil)
	for _, kind := range []string{"ed25519", "ecdsa", "rsa"} {
		if out, errs, code := w.client(w.keyPair(name, kind), "", "ssh", box+"@127.0.0.1", "whoami; pwd; exit 7"); code != 7 || out != "boxuser\n/workspace/home\n" {
			t.Fatalf("%s: exit %d: %q, %s", kind, code, out, errs)
		}
	}
	file := w.keyPair(name, "ed25519")
	at := box + "@127.0.0.1"
	if out, errs, code := w.client(file, "one\ntwo\n", "ssh", at, "wc -l; echo bad >&2"); code != 0 || strings.TrimSpace(out) != "2" || errs != "bad\n" {
		t.Errorf("streams: exit %d: %q, %q", code, out, errs)
	}
	if out, errs, code := w.client(file, "echo in $0; exit 3\n", "ssh", at); code != 3 || !strings.Contains(out, "in ") {
		t.Errorf("a shell: exit %d: %q, %s", code, out, errs)
	}
	if out, errs, code := w.client(file, "", "ssh", "-tt", "-o", "SetEnv=TERM=xterm-256color", at, "tty; echo $TERM; stty size"); code != 0 || !strings.Contains(out, "/dev/pts/") || !strings.Contains(out, "xterm-256color") {
		t.Errorf("a terminal: exit %d: %q, %s", code, out, errs)
	}
	if out, errs, code := w.client(file, "", "ssh", "-o", "SetEnv=LC_WORD=hello LD_PRELOAD=/x", at, "echo $LC_WORD-$LD_PRELOAD"); code != 0 || out != "hello-\n" {
		t.Errorf("the environment: exit %d: %q, %s", code, out, errs)
	}
	if out, errs, code := w.run(nil, "", "sh", "-c", strings.Join(append([]string{"ssh"}, w.options(file)...), " ")+" "+at+" yes | head -1"); code != 0 || out != "y\n" {
		t.Errorf("output that is not read on: exit %d: %q, %s", code, out, errs)
	}
	if out, errs, code := w.client(file, "", "ssh", at, "kill -9 $$"); code != 128+9 {
		t.Errorf("a killed command: exit %d: %q, %s", code, out, errs)
	}
	big := strings.Repeat("0123456789abcdef", 1<<18)
	if out, errs, code := w.client(file, big, "ssh", at, "cat"); code != 0 || out != big {
		t.Errorf("4 MiB there and back: exit %d: %d bytes, %s", code, len(out), errs)
	}
}

// TestAccountOfTheBox: a session and SFTP begin in the home directory of the user that the box was created with.
func TestAccountOfTheBox(t *testing.T) {
	t.Parallel()
	w := shared(t)
	at := w.Create(map[string]any{"user": "user", "home": "/home/user"}) + "@127.0.0.1"
	name, _ := w.apiKey("admin", nil)
	file := w.keyPair(name, "ed25519")
	if out, errs, code := w.client(file, "", "ssh", at, "whoami; pwd; echo $HOME"); code != 0 || out != "user\n/home/user\n/home/user\n" {
		t.Errorf("exit %d: %q, %s", code, out, errs)
	}
	if out, errs, code := w.client(file, "pwd\nmkdir d\n", "sftp", "-b", "-", at); code != 0 || !strings.Contains(out, "/home/user\n") {
		t.Errorf("sftp: exit %d: %s%s", code, out, errs)
	}
}

// TestSignalsThatKill: libraries learn the signal that killed a command, and not from a command that exits with its number.
func TestSignalsThatKill(t *testing.T) {
	t.Parallel()
	w := shared(t)
	box := w.Create(map[string]any{})
	_, key := w.apiKey("one-box", map[string]any{"box": box})
	c := w.mustLogIn(box, key)
	for line, want := range map[string]string{"kill -9 $$": "137 KILL", "kill -SEGV $$": "139 SEGV", "exit 137": "137 "} {
		s, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		exit, ok := errors.AsType[*gossh.ExitError](s.Run(line))
		if !ok || fmt.Sprint(exit.ExitStatus(), " ", exit.Signal()) != want {
			t.Errorf("%s: %v, want %s", line, exit, want)
		}
	}
}

// TestPasswords logs in with an API key as password, by OpenSSH's client, to a box by its name.
func TestPasswords(t *testing.T) {
	t.Parallel()
	w := shared(t)
	boxName := fmt.Sprintf("named-%d", time.Now().UnixNano())
	w.Create(map[string]any{"name": boxName})
	_, key := w.apiKey("admin", nil)
	ask := filepath.Join(w.dir, "ask")
	if err := os.WriteFile(ask, []byte("#!/bin/sh\necho "+key+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	args := append(w.options("/nonexistent"), "-o", "BatchMode=no", "-o", "PreferredAuthentications=password", "-o", "NumberOfPasswordPrompts=1", boxName+"@127.0.0.1", "echo $0 ran")
	args = append([]string{"-o", "BatchMode=no"}, args...)
	out, errs, code := w.run([]string{"SSH_ASKPASS=" + ask, "SSH_ASKPASS_REQUIRE=force"}, "", "ssh", args...)
	if code != 0 || !strings.Contains(out, "ran") {
		t.Errorf("exit %d: %q, %s", code, out, errs)
	}
}

// TestTransfers copies files with scp and sftp, both ways, and compares them.
func TestTransfers(t *testing.T) {
	t.Parallel()
	w := shared(t)
	box := w.Create(map[string]any{})
	name, _ := w.apiKey("admin", nil)
	file, at := w.keyPair(name, "ed25519"), box+"@127.0.0.1"
	data := make([]byte, 8<<20+17)
	_, _ = rand.Read(data)
	local := filepath.Join(w.dir, "data")
	if err := os.WriteFile(local, data, 0o640); err != nil {
		t.Fatal(err)
	}
	for what, flag := range map[string]string{"sftp": "-s", "the old protocol": "-O"} {
		remote, back := "copied"+flag, filepath.Join(w.dir, "back"+flag)
		if _, errs, code := w.client(file, "", "scp", "-p", flag, local, at+":"+remote); code != 0 {
			t.Errorf("scp by %s: exit %d: %s", what, code, errs)
			continue
		}
		if out := w.MustSh(box, "stat -c '%U %a %s' /workspace/home/"+remote); out != "boxuser 640 8388625\n" {
			t.Errorf("%s: %q", what, out)
		}
		if _, errs, code := w.client(file, "", "scp", flag, at+":/workspace/home/"+remote, back); code != 0 {
			t.Errorf("scp back by %s: exit %d: %s", what, code, errs)
		}
		if got, err := os.ReadFile(back); err != nil || string(got) != string(data) {
			t.Errorf("%s: %d bytes came back, %v", what, len(got), err)
		}
	}
	batch := fmt.Sprintf("pwd\nmkdir d\nput %s d/x\nrename d/x d/y\nchmod 600 d/y\nln -s y d/link\nls -l d\nget d/link %s\nrm d/link\nrm d/y\nrmdir d\n", local, filepath.Join(w.dir, "z"))
	out, errs, code := w.client(file, batch, "sftp", "-b", "-", at)
	if code != 0 || !strings.Contains(out, "/workspace/home") {
		t.Errorf("sftp: exit %d: %s%s", code, out, errs)
	}
	if got, err := os.ReadFile(filepath.Join(w.dir, "z")); err != nil || string(got) != string(data) {
		t.Errorf("sftp: %d bytes came back, %v", len(got), err)
	}
}

// TestGitOverSSHToABox clones a repository of a box, commits and pushes.
func TestGitOverSSHToABox(t *testing.T) {
	t.Parallel()
	w := shared(t)
	box := w.Create(map[string]any{})
	name, _ := w.apiKey("admin", nil)
	w.MustSh(box, "git init -q --bare repo.git")
	env := []string{"GIT_SSH_COMMAND=ssh " + strings.Join(w.options(w.keyPair(name, "ed25519")), " "), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null"}
	clone := filepath.Join(w.dir, "clone")
	script := "git clone -q " + box + "@127.0.0.1:repo.git " + clone + " && cd " + clone + " && git -c user.name=a -c user.email=a@example.org commit -q --allow-empty -m first && git push -q origin HEAD:main"
	if out, errs, code := w.run(env, "", "sh", "-c", script); code != 0 {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	if out := w.MustSh(box, "git -C repo.git log --format=%s main"); out != "first\n" {
		t.Errorf("%q", out)
	}
}

// TestPortForwarding reaches servers on the box's loopback interface with ssh -L and -W.
func TestPortForwarding(t *testing.T) {
	t.Parallel()
	w := shared(t)
	box := w.Create(map[string]any{})
	name, _ := w.apiKey("admin", nil)
	file, at := w.keyPair(name, "ed25519"), box+"@127.0.0.1"
	w.serveInside(box, "127.0.0.1", "8111")
	w.serveInside(box, "::1", "8112")
	for _, to := range []string{"127.0.0.1:8111", "localhost:8111", "[::1]:8112", "localhost:8112"} {
		if out, errs, code := w.client(file, "world", "ssh", "-W", to, at); code != 0 || out != "hello world" {
			t.Errorf("%s: exit %d: %q, %s", to, code, out, errs)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, "ssh", append(w.options(file), "-N", "-o", "ExitOnForwardFailure=yes", "-L", "127.0.0.1:8113:localhost:8111", at)...)
	w.start(cmd)
	defer func() { stop(); _ = cmd.Wait() }()
	for i := range 40 { // one after the other, more than one connection may have at a time
		var c net.Conn
		w.Until("the port is forwarded", func() bool {
			return w.Net.Gateway().Do(func() (err error) { c, err = net.Dial("tcp", "127.0.0.1:8113"); return err }) == nil
		})
		_ = c.SetDeadline(time.Now().Add(harness.Patience))
		word := hex.EncodeToString([]byte{byte(i)})
		_, _ = c.Write([]byte(word))
		_ = c.(*net.TCPConn).CloseWrite()
		if got, _ := harness.ReadAll(c); got != "hello "+word {
			t.Fatalf("connection %d: %q", i, got)
		}
		_ = c.Close()
	}
}

package ssh

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pkg/sftp"
	gossh "golang.org/x/crypto/ssh"
)

// newSigner makes a key pair, which no API key has unless its public key is added.
func newSigner(t *testing.T) gossh.Signer {
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

// signerOf makes a key pair whose public key an API key has.
func (w *world) signerOf(apiKey string) gossh.Signer {
	w.T.Helper()
	signer := newSigner(w.T)
	w.Run(0, nil, string(gossh.MarshalAuthorizedKey(signer.PublicKey())), "api-key", "ssh-key", "add", "--name", "test", apiKey, "-")
	return signer
}

// TestAttackLogins: whatever is wrong with a login, the answer is the same, and a public key of another person shows nothing.
func TestAttackLogins(t *testing.T) {
	t.Parallel()
	w := shared(t)
	box, other := w.Create(map[string]any{}), w.Create(map[string]any{})
	admin, adminKey := w.apiKey("admin", nil)
	_, own := w.apiKey("one-box", map[string]any{"box": box})
	_, reader := w.apiKey("read-only", nil)
	_, auditor := w.apiKey("auditor", nil)
	_, creator := w.apiKey("box-creator", nil) // has created no box
	known, ownSigner := w.signerOf(admin), newSigner(t)
	for _, key := range []string{adminKey, own} {
		_ = w.mustLogIn(box, key)
	}
	if _, err := w.logIn(box, gossh.PublicKeys(known)); err != nil {
		t.Fatal(err)
	}
	answers := map[string]string{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for what, try := range map[string]struct {
		box  string
		auth gossh.AuthMethod
	}{
		"no such box":                  {"never", gossh.Password(adminKey)},
		"no such key":                  {box, gossh.Password("wrong")},
		"no key":                       {box, gossh.Password("")},
		"a box of another account":     {other, gossh.Password(own)},
		"a box that others created":    {box, gossh.Password(creator)},
		"a role that only reads":       {box, gossh.Password(reader)},
		"a role that audits":           {box, gossh.Password(auditor)},
		"a very long key":              {box, gossh.Password(strings.Repeat("x", 10_000))},
		"keyboard-interactive":         {box, gossh.KeyboardInteractive(func(string, string, []string, []bool) ([]string, error) { return []string{adminKey}, nil })},
		"an unknown public key":        {box, gossh.PublicKeys(ownSigner)},
		"a known key for no box":       {"never", gossh.PublicKeys(known)},
		"the path of a box":            {"../" + box, gossh.Password(adminKey)},
		"the account as root's":        {"root", gossh.Password(adminKey)},
		"an empty name":                {"", gossh.Password(adminKey)},
		"the name in another spelling": {strings.ToUpper(box) + " ", gossh.Password(adminKey)},
	} {
		conn := w.dial()
		all.Go(func() { // a wrong password takes a second
			_, err := w.logInBy(conn, try.box, try.auth)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				t.Errorf("%s: logged in", what)
				return
			}
			answers[what] = err.Error()
		})
	}
	all.Wait()
	for what, text := range answers {
		want := answers["no such key"]
		if strings.Contains(what, "public key") || strings.Contains(what, "known key") {
			want = strings.Replace(want, "none password", "none publickey", 1)
		}
		if what == "keyboard-interactive" {
			want = strings.Replace(want, "none password", "none", 1)
		}
		if text != want && what != "an empty name" {
			t.Errorf("%s: %q, not %q", what, text, want)
		}
	}
	// The server asks for a signature of every key before it decides.
	for what, to := range map[string]string{"a known key, a box of its": box, "a known key, no box": "never"} {
		for _, signer := range []gossh.Signer{known, newSigner(t)} {
			if !w.wouldAccept(to, signer.PublicKey()) {
				t.Errorf("%s: a public key is refused before its owner has signed", what)
			}
		}
	}
}

// wouldAccept reports whether the server asks the owner of a public key for a signature.
func (w *world) wouldAccept(box string, key gossh.PublicKey) bool {
	w.T.Helper()
	probe := &unsigned{PublicKeyOf: key}
	_, _ = w.logIn(box, gossh.PublicKeys(probe))
	return probe.asked
}

// unsigned is a signer that has a public key only.
type unsigned struct {
	PublicKeyOf gossh.PublicKey
	asked       bool
}

// PublicKey implements [gossh.Signer].
func (u *unsigned) PublicKey() gossh.PublicKey { return u.PublicKeyOf }

// Sign implements [gossh.Signer].
func (u *unsigned) Sign(io.Reader, []byte) (*gossh.Signature, error) {
	u.asked = true
	return nil, errors.New("no private key")
}

// TestAttackForwards: a client reaches nothing but the loopback interface of its own box.
func TestAttackForwards(t *testing.T) {
	t.Parallel()
	w := shared(t)
	box, neighbour := w.Create(map[string]any{}), w.Create(map[string]any{})
	_, key := w.apiKey("admin", nil)
	w.serveInside(neighbour, "0.0.0.0", "8111")
	address := strings.TrimSpace(w.MustSh(neighbour, "hostname -I | cut -d' ' -f1"))
	gatewayAt := strings.TrimSpace(w.MustSh(box, "ip -4 route show default 2>/dev/null | awk '{print $3}'; awk '/nameserver/{print $2; exit}' /etc/resolv.conf"))
	c := w.mustLogIn(box, key)
	for _, to := range []string{
		"127.0.0.1:8111", "localhost:8111", address + ":8111", strings.Fields(gatewayAt + " 10.200.0.1")[0] + ":53", "127.0.0.1:" + port, "localhost:8600",
		"169.254.169.254:80", "0.0.0.0:8111", "127.0.0.2:8111", "127.1:8111", "2130706433:8111", "[::ffff:127.0.0.1]:8111", "[::]:8111", "localhost.:8111", "LOCALHOST:8111", "example.com:80", "[::1%lo]:8111",
	} {
		conn, err := c.Dial("tcp", to)
		if err == nil {
			_ = conn.Close()
			t.Errorf("%s was reached", to)
			continue
		}
		var refused *gossh.OpenChannelError
		if !errors.As(err, &refused) {
			t.Errorf("%s: %v", to, err)
		}
	}
	for _, kind := range []string{"direct-streamlocal@openssh.com", "forwarded-tcpip", "x11", "auth-agent@openssh.com", "tun@openssh.com", "anything"} {
		if _, _, err := c.OpenChannel(kind, nil); err == nil {
			t.Errorf("a channel of type %s", kind)
		}
	}
	for _, bad := range [][]byte{nil, {0}, bytes.Repeat([]byte{0xff}, 64), gossh.Marshal(struct {
		Host string
		Port uint32
		From string
		By   uint32
	}{"localhost", 0, "", 0}), gossh.Marshal(struct {
		Host string
		Port uint32
		From string
		By   uint32
	}{"localhost", 65536 + 8111, "", 0})} {
		if _, _, err := c.OpenChannel("direct-tcpip", bad); err == nil {
			t.Errorf("a channel with %x", bad)
		}
	}
	for _, kind := range []string{"tcpip-forward", "streamlocal-forward@openssh.com", "hostkeys-prove-00@openssh.com", "anything"} {
		if ok, _, err := c.SendRequest(kind, true, gossh.Marshal(struct {
			Host string
			Port uint32
		}{"127.0.0.1", 0})); ok || err != nil {
			t.Errorf("the request %s: %v, %v", kind, ok, err)
		}
	}
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"auth-agent-req@openssh.com", "x11-req", "anything"} {
		if ok, _ := s.SendRequest(kind, true, nil); ok {
			t.Errorf("the request %s of a session", kind)
		}
	}
	if err := s.RequestSubsystem("netconf"); err == nil {
		t.Error("another subsystem")
	}
}

// TestAttackSFTP: paths and links lead to files of the box only, with the access of its user.
func TestAttackSFTP(t *testing.T) {
	t.Parallel()
	w := shared(t)
	box := w.Create(map[string]any{})
	_, key := w.apiKey("admin", nil)
	host := filepath.Join(t.TempDir(), "of-the-host")
	if err := os.WriteFile(host, []byte("of the host"), 0o666); err != nil {
		t.Fatal(err)
	}
	_ = os.Chmod(filepath.Dir(host), 0o777)
	w.MustSh(box, "ln -s "+host+" away; ln -s /proc/1/root/etc/shadow first; ln -s /proc/self/root"+host+" self; ln -s / all")
	client, err := sftp.NewClient(w.mustLogIn(box, key))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	up := strings.Repeat("../", 40)
	for _, path := range []string{host, up + host, "/" + up + host, "away", "first", "self", "all/" + up + host, "/etc/shadow", "/proc/1/environ", "/proc/self/environ", "/proc/self/fd/0", "/proc/self/exe", "/proc/self/root" + host, "/proc/thread-self/cwd/../.." + host, "/sys/kernel/debug", "/dev/mem"} {
		f, err := client.Open(path)
		if err != nil {
			continue
		}
		var text [64]byte
		if n, err := f.Read(text[:]); err == nil {
			t.Errorf("%s was read: %q", path, text[:n])
		}
		_ = f.Close()
	}
	for _, path := range []string{host, "away", "/etc/passwd", "/root/x", "/usr/bin/x", "/proc/sys/kernel/core_pattern", "all/etc/hosts2"} {
		if f, err := client.Create(path); err == nil {
			_, err = f.Write([]byte("taken"))
			if _ = f.Close(); err == nil {
				t.Errorf("%s was written", path)
			}
		}
	}
	if text, err := os.ReadFile(host); err != nil || string(text) != "of the host" {
		t.Errorf("the host's file: %q, %v", text, err)
	}
	if at, err := client.Getwd(); at != "/workspace/home" || err != nil {
		t.Errorf("%q, %v", at, err)
	}
	if out := w.MustSh(box, "pgrep -fa boxgate-[s]ftp || true; ls /proc | grep -c '^[0-9]*$'"); strings.Contains(out, "boxgate-sftp ") {
		t.Errorf("the box sees the server of SFTP: %s", out)
	}
	if err := client.Chown("away2", 0, 0); err == nil {
		t.Error("the owner of a missing file was changed")
	}
	f, err := client.Create("mine")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for what, do := range map[string]func() error{
		"another owner": func() error { return client.Chown("mine", 0, 0) }, "a device": func() error { _, err := client.ReadDir("/proc/1/fd"); return err },
	} {
		if do() == nil {
			t.Error(what)
		}
	}
	if err := client.Chmod("mine", 0o4755); err == nil {
		if out := w.MustSh(box, "stat -c %U mine"); out != "boxuser\n" {
			t.Errorf("a set-user-ID file of %s", out)
		}
	}
}

// TestAttackSFTPThatHangs: files that never open hang their own session only, which ends with its client, and neither its place nor the
// box stays.
func TestAttackSFTPThatHangs(t *testing.T) {
	t.Parallel()
	w := shared(t)
	box := w.Create(map[string]any{})
	_, key := w.apiKey("admin", nil)
	w.MustSh(box, "mkfifo never; mkdir many; cd many; seq 1 5000 | xargs touch; truncate -s 1T ../sparse")
	hang := func() (conns []*gossh.Client) {
		for range 8 {
			c := w.mustLogIn(box, key)
			client, err := sftp.NewClient(c)
			if err != nil {
				t.Fatal(err)
			}
			for range 20 {
				go func() { _, _ = client.Open("never") }()
			}
			conns = append(conns, c)
		}
		return conns
	}
	conns := hang()
	if _, err := sftp.NewClient(w.mustLogIn(box, key)); err == nil {
		t.Error("a session above the limit")
	}
	if out := w.MustSh(box, "echo works"); out != "works\n" {
		t.Errorf("a command: %q", out)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	w.Until("the places are free", func() bool {
		c, err := w.logIn(box, gossh.Password(key))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		client, err := sftp.NewClient(c)
		if err != nil {
			return false
		}
		defer client.Close()
		list, err := client.ReadDir("many")
		sparse, failed := client.Stat("sparse")
		if err := errors.Join(err, failed); err != nil || len(list) != 5000 || sparse.Size() != 1<<40 {
			t.Fatalf("%d files of a large directory, %v", len(list), err)
		}
		return true
	})
	conns = hang()
	w.MustDelete(box)
	for _, c := range conns {
		_ = c.Wait()
	}
	w.NoInternalErrors()
}

// TestSessionsAreBounded: a client that asks for more than it may have gets a refusal, and the others go on.
func TestSessionsAreBounded(t *testing.T) {
	t.Parallel()
	w := shared(t)
	box := w.Create(map[string]any{})
	_, key := w.apiKey("admin", nil)
	c := w.mustLogIn(box, key)
	var open []*gossh.Session
	for range 33 {
		s, err := c.NewSession()
		if err != nil {
			break
		}
		open = append(open, s)
	}
	if len(open) != 32 {
		t.Errorf("%d channels of one connection", len(open))
	}
	if err := open[0].Setenv("LONG", strings.Repeat("x", 60<<10)); err != nil {
		t.Errorf("a variable of 60 KiB: %v", err)
	}
	if err := open[0].Setenv("MORE", strings.Repeat("x", 10<<10)); err == nil {
		t.Error("70 KiB of variables")
	}
	many := 0
	for i := range 200 {
		if open[1].Setenv(fmt.Sprintf("V%d", i), "x") == nil {
			many++
		}
	}
	if many != 128 {
		t.Errorf("%d variables", many)
	}
	for _, name := range []string{"", "A=B", "LD_PRELOAD", "A\x00B", strings.Repeat("N", 300)} {
		if open[2].Setenv(name, "x") == nil {
			t.Errorf("the variable %q", name)
		}
	}
	if err := open[2].RequestPty("xterm\x1b[2J", 24, 80, nil); err == nil {
		t.Error("a terminal with control characters in its name")
	}
	if err := open[2].RequestPty("xterm", 1<<30, 1<<30, nil); err != nil {
		t.Errorf("a large terminal: %v", err)
	}
	if out, err := open[2].Output("stty size"); err != nil || strings.TrimSpace(string(out)) != "4096 4096" {
		t.Errorf("its size: %q, %v", out, err)
	}
	if err := open[3].Start("x\x00y"); err == nil {
		t.Error("a command with NUL")
	}
	if err := open[3].Start(strings.Repeat("x", 70<<10)); err == nil {
		t.Error("a command of 70 KiB")
	}
	if out, err := open[4].Output("echo works"); err != nil || string(out) != "works\n" {
		t.Errorf("%q, %v", out, err)
	}
	if again, err := c.NewSession(); err != nil {
		t.Errorf("a session after others have ended: %v", err)
	} else if out, err := again.CombinedOutput("exit 4"); exitStatus(err) != 4 {
		t.Errorf("%q, %v", out, err)
	}
}

func exitStatus(err error) int {
	exit, ok := errors.AsType[*gossh.ExitError](err)
	if !ok {
		return -1
	}
	return exit.ExitStatus()
}

// TestQuotasOfSSH: connections and sessions count for the quotas of the API key.
func TestQuotasOfSSH(t *testing.T) {
	t.Parallel()
	w := shared(t)
	box := w.Create(map[string]any{})
	_, key := w.apiKey("one-box", map[string]any{"box": box, "quotas": map[string]int{"commands": 1, "connections": 2}})
	c := w.mustLogIn(box, key)
	first, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	out, _ := first.StdoutPipe()
	if err := first.Start("echo up; sleep 600"); err != nil {
		t.Fatal(err)
	}
	_, _ = out.Read(make([]byte, 3))
	second, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := second.CombinedOutput("echo ran"); exitStatus(err) != 255 || !strings.Contains(string(out), "boxgate: ") || !strings.Contains(string(out), "commands") {
		t.Errorf("a second command: %q, %v", out, err)
	}
	if _, err := c.Dial("tcp", "localhost:1"); err == nil || !strings.Contains(err.Error(), "commands") {
		t.Errorf("a port: %v", err)
	}
	_ = w.mustLogIn(box, key)
	if c, err := w.logIn(box, gossh.Password(key)); err == nil {
		if _, err := c.NewSession(); err == nil {
			t.Error("a third connection")
		}
	}
	w.serveInside(box, "127.0.0.1", "8111")
	_, few := w.apiKey("one-box", map[string]any{"box": box, "quotas": map[string]int{"requests": 3}})
	by := w.mustLogIn(box, few)
	var ports []net.Conn
	for range 3 { // the port in use counts as well
		conn, err := by.Dial("tcp", "localhost:8111")
		if err != nil {
			if len(ports) != 2 || !strings.Contains(err.Error(), "requests") {
				t.Errorf("connection %d to a port: %v", len(ports), err)
			}
			break
		}
		ports = append(ports, conn)
	}
	if len(ports) != 2 {
		t.Fatalf("%d connections to a port", len(ports))
	}
	_ = ports[0].Close()
	w.Until("the place of a connection to a port is free", func() bool {
		conn, err := by.Dial("tcp", "localhost:8111")
		return err == nil && conn.Close() == nil
	})
	if s, err := c.NewSession(); err != nil || s == nil {
		t.Errorf("the first connection: %v", err)
	}
}

// TestAttackFloodOfStrangers: clients that do not log in do not keep others out, and are gone when they close their connections.
func TestAttackFloodOfStrangers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	box := w.Create(map[string]any{})
	_, key := w.apiKey("admin", nil)
	var idle []net.Conn
	for i := range 400 {
		c := w.dial()
		switch i % 3 {
		case 1: // half a greeting
			_, _ = c.Write([]byte("SSH-2.0-x"))
		case 2: // a packet that never ends
			_, _ = c.Write(append([]byte("SSH-2.0-x\r\n"), 0, 0, 0x80, 0, 4))
		}
		idle = append(idle, c)
	}
	s, err := w.mustLogIn(box, key).NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := s.Output("echo works"); err != nil || string(out) != "works\n" {
		t.Errorf("%q, %v", out, err)
	}
	var status struct {
		Listeners []struct {
			Name        string
			Connections int
		}
	}
	w.Until("strangers are bounded", func() bool {
		if err := w.Client.Get(t.Context(), "/v2/gateway", &status); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(status.Listeners, func(l struct {
			Name        string
			Connections int
		}) bool {
			return l.Name == "ssh" && l.Connections <= 257
		})
	})
	for _, c := range idle {
		_ = c.Close()
	}
	w.Until("strangers are gone", func() bool {
		if err := w.Client.Get(t.Context(), "/v2/gateway", &status); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(status.Listeners, func(l struct {
			Name        string
			Connections int
		}) bool {
			return l.Name == "ssh" && l.Connections <= 1
		})
	})
	w.NoInternalErrors()
}

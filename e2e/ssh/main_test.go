package ssh

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"boxgate/config"
	"boxgate/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// port is the port of ssh.listen on the gateway's loopback address.
const port = "2222"

// world is a gateway that serves SSH.
type world struct {
	*harness.World
	dir string // of keys and known hosts
}

func newWorld(t *testing.T, change func(*config.Config)) *world {
	t.Helper()
	return &world{harness.NewWorld(t, func(c *config.Config) {
		c.SSH.Listen = "127.0.0.1:" + port
		if change != nil {
			change(c)
		}
	}), t.TempDir()}
}

// shared returns a gateway that other tests use at other times.
func shared(t *testing.T) *world {
	t.Helper()
	return &world{harness.SharedWith(t, serving), t.TempDir()}
}

func serving(c *config.Config) { c.SSH.Listen = "127.0.0.1:" + port }

// apiKey makes an API key, and returns its name and the key.
func (w *world) apiKey(role string, more map[string]any) (name, key string) {
	w.T.Helper()
	name = fmt.Sprintf("%s-%d", role, time.Now().UnixNano())
	body := map[string]any{"name": name, "role": role}
	for k, v := range more {
		body[k] = v
	}
	var made struct{ Key string }
	if err := w.Client.Do(w.T.Context(), "POST", "/v2/api-keys", body, &made); err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = w.Client.Do(context.Background(), "DELETE", "/v2/api-keys/"+name, nil, nil) })
	return name, made.Key
}

// keyPair makes a key pair of a type with ssh-keygen, adds it to an API key, and returns the file of the private key.
func (w *world) keyPair(apiKey, kind string) (file string) {
	w.T.Helper()
	file = filepath.Join(w.dir, fmt.Sprintf("id_%s_%d", kind, time.Now().UnixNano()))
	if out, err := exec.CommandContext(w.T.Context(), "ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "ada@laptop", "-f", file).CombinedOutput(); err != nil {
		w.T.Fatalf("ssh-keygen: %v: %s", err, out)
	}
	w.Run(0, nil, "", "api-key", "ssh-key", "add", apiKey, file+".pub")
	return file
}

// knownHosts writes a file that has the fingerprint's key of the gateway, after comparing it with that of `gateway status`.
func (w *world) knownHosts() string {
	w.T.Helper()
	path := filepath.Join(w.dir, "known_hosts")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	var shown string
	conn := w.dial()
	defer conn.Close()
	_, _, _, _ = gossh.NewClientConn(conn, "gateway", &gossh.ClientConfig{User: "x", HostKeyCallback: func(_ string, _ net.Addr, key gossh.PublicKey) error {
		shown = gossh.FingerprintSHA256(key)
		line := fmt.Sprintf("[127.0.0.1]:%s %s", port, gossh.MarshalAuthorizedKey(key))
		return os.WriteFile(path, []byte(line), 0o600)
	}})
	var status struct {
		SSHHostKey string `json:"ssh_host_key"`
	}
	if err := w.Client.Get(w.T.Context(), "/v2/gateway", &status); err != nil || shown == "" || status.SSHHostKey != shown {
		w.T.Fatalf("the host key is %q, and the status has %q: %v", shown, status.SSHHostKey, err)
	}
	return path
}

// options returns the options of OpenSSH's clients for a login with a private key.
func (w *world) options(file string) []string {
	w.T.Helper()
	return []string{
		"-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "-o", "StrictHostKeyChecking=yes", "-o", "UserKnownHostsFile=" + w.knownHosts(),
		"-o", "GlobalKnownHostsFile=/dev/null", "-o", "Port=" + port, "-i", file,
	}
}

// start starts a program in the gateway's network namespace.
func (w *world) start(cmd *exec.Cmd) {
	w.T.Helper()
	if err := w.Net.Gateway().Do(cmd.Start); err != nil {
		w.T.Fatal(err)
	}
}

// client runs a client of OpenSSH to its end, and returns its output, its errors and its exit status.
func (w *world) client(file, stdin, program string, args ...string) (out, errors string, code int) {
	w.T.Helper()
	return w.run(nil, stdin, program, append(w.options(file), args...)...)
}

func (w *world) run(env []string, stdin, program string, args ...string) (out, errors string, code int) {
	w.T.Helper()
	cmd := exec.CommandContext(w.T.Context(), program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	cmd.Env = append(os.Environ(), env...)
	w.start(cmd)
	_ = cmd.Wait()
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// dial connects to the listener from the gateway's network namespace.
func (w *world) dial() (c net.Conn) {
	w.T.Helper()
	err := w.Net.Gateway().Do(func() (err error) {
		c, err = net.Dial("tcp", "127.0.0.1:"+port)
		return err
	})
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	return c
}

// logIn logs in to a box with the client of x/crypto.
func (w *world) logIn(box string, auth ...gossh.AuthMethod) (*gossh.Client, error) {
	w.T.Helper()
	return w.logInBy(w.dial(), box, auth...)
}

// logInBy is logIn by a connection.
func (w *world) logInBy(by net.Conn, box string, auth ...gossh.AuthMethod) (*gossh.Client, error) {
	conn, channels, requests, err := gossh.NewClientConn(by, "gateway", &gossh.ClientConfig{
		User: box, Auth: auth, HostKeyCallback: gossh.InsecureIgnoreHostKey(), //nolint:gosec // of a test
	})
	if err != nil {
		return nil, err
	}
	c := gossh.NewClient(conn, channels, requests)
	w.T.Cleanup(func() { _ = c.Close() })
	return c, nil
}

// mustLogIn is logIn with an API key as password.
func (w *world) mustLogIn(box, key string) *gossh.Client {
	w.T.Helper()
	c, err := w.logIn(box, gossh.Password(key))
	if err != nil {
		w.T.Fatal(err)
	}
	return c
}

// serveInside serves connections to an address inside a box, each with a word and then what the client sends.
func (w *world) serveInside(box, address, port string) {
	w.T.Helper()
	script := fmt.Sprintf(`import socket,threading
s=socket.socket(socket.AF_INET6 if ":" in %q else socket.AF_INET); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind((%[1]q,%s)); s.listen(16); print("ready",flush=True)
def serve(c):
    c.sendall(b"hello ")
    while True:
        d=c.recv(65536)
        if not d: break
        c.sendall(d)
    c.close()
while True:
    threading.Thread(target=serve,args=(s.accept()[0],),daemon=True).start()`, address, port)
	out := &lines{}
	w.Background(box, "exec python3 -c '"+script+"'", out)
	w.Until("a server listens in the box", func() bool { return strings.Contains(out.String(), "ready") })
}

// lines is output that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements [io.Writer].
func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

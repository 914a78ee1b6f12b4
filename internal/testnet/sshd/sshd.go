// Package sshd runs OpenSSH's server for tests. Each connection gets its own process, which inherits the connection, so
// no port is needed. The process is init of a PID namespace, so that its commands end with it. The users are defined by
// this package, independent of the users of the machine.
package sshd

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	gossh "golang.org/x/crypto/ssh"
)

// root is where `make sshd` unpacks the server.
const root = "/var/lib/boxgate/openssh"

// User is the user that runs the commands. UID is that of the user nobody.
const (
	User = "git"
	UID  = 65534
)

// Server is a server with repositories. Create it with [New].
type Server struct {
	Home    string // home of [User]; contains the repositories
	Key     string // private key that User may log in with
	HostKey string // public host key, as type and base64

	t     testing.TB
	dir   string
	lines []string // additional lines of the configuration

	mu      sync.Mutex
	log     []string
	running sync.WaitGroup
}

// New returns a server with the given lines added to its configuration. It stops with the test. The test fails if the
// server is not installed.
func New(t testing.TB, lines ...string) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root (make test)")
	}
	if _, err := os.Stat(filepath.Join(root, "usr/sbin/sshd")); err != nil || os.Geteuid() != 0 {
		t.Fatal("needs root, and OpenSSH's server: sudo make sshd")
	}
	dir, err := os.MkdirTemp("", "boxgate-sshd-")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, dir: dir, Home: filepath.Join(dir, "home"), lines: lines}
	t.Cleanup(func() {
		s.running.Wait()
		_ = os.RemoveAll(dir)
	})
	s.must(os.Chmod(dir, 0o755))
	s.must(os.Mkdir(s.Home, 0o755))
	private, public := NewKey(t)
	host, hostPublic := NewKey(t)
	s.Key, s.HostKey = private, hostPublic
	s.write("authorized_keys", public+"\n", 0o644)
	s.write("host_key", host, 0o600)
	s.write("passwd", fmt.Sprintf("root:x:0:0::/root:/bin/sh\nsshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n%s:x:%d:65534::%s:/bin/sh\n", User, UID, s.Home), 0o644)
	s.write("sshd_config", s.config(), 0o644)
	s.must(os.Chown(s.Home, UID, UID))
	return s
}

func (s *Server) config() string {
	return strings.Join(append([]string{
		"HostKey " + filepath.Join(s.dir, "host_key"),
		"AuthorizedKeysFile " + filepath.Join(s.dir, "authorized_keys"),
		"Subsystem sftp internal-sftp",
		"AuthenticationMethods publickey", "StrictModes no", "UsePAM no", "PrintMotd no", "PidFile none", "LogLevel DEBUG1", "AcceptEnv GIT_PROTOCOL LANG LC_*",
	}, s.lines...), "\n") + "\n"
}

// NewKey returns a new private key in OpenSSH's form, and its public key as type and base64.
func NewKey(t testing.TB) (private, public string) {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := gossh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	shown, err := gossh.NewPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(block)), strings.TrimSpace(string(gossh.MarshalAuthorizedKey(shown)))
}

func (s *Server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) write(name, text string, mode os.FileMode) {
	s.t.Helper()
	s.must(os.WriteFile(filepath.Join(s.dir, name), []byte(text), mode))
}

// Certify makes an authority sign the host key for a name. The server then presents the certificate.
func (s *Server) Certify(authority gossh.Signer, name string) {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "host_key"))
	s.must(err)
	host, err := gossh.ParsePrivateKey(text)
	s.must(err)
	cert := &gossh.Certificate{
		Key: host.PublicKey(), CertType: gossh.HostCert, KeyId: name, ValidPrincipals: []string{name}, ValidBefore: gossh.CertTimeInfinity,
	}
	s.must(cert.SignCert(rand.Reader, authority))
	s.write("host_key-cert.pub", string(gossh.MarshalAuthorizedKey(cert)), 0o644)
	s.lines = append(s.lines, "HostCertificate "+filepath.Join(s.dir, "host_key-cert.pub"))
	s.write("sshd_config", s.config(), 0o644)
}

// Repo makes an empty bare repository below the home of the user.
func (s *Server) Repo(path string) {
	s.t.Helper()
	dir := filepath.Join(s.Home, path)
	out, err := exec.Command("git", "init", "--quiet", "--bare", "--initial-branch=main", dir).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	s.must(filepath.Walk(s.Home, func(p string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, UID, UID)
	}))
}

// Serve serves connections until the listener is closed.
func (s *Server) Serve(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		s.running.Go(func() { s.Handle(c) })
	}
}

// Handle serves a connection and closes it.
func (s *Server) Handle(c net.Conn) {
	defer c.Close()
	file, err := c.(*net.TCPConn).File()
	if err != nil {
		return
	}
	defer file.Close()
	_ = c.Close()
	libraries, err := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu*"))
	if err != nil {
		return
	}
	// Killed with the test: a client that the test left behind would keep its connection for minutes.
	cmd := exec.CommandContext(s.t.Context(), "sh", "-c", `
		mount --bind "$0/passwd" /etc/passwd && mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && exec "$1" -i -e -f "$0/sshd_config"
	`, s.dir, filepath.Join(root, "usr/sbin/sshd"))
	log := &strings.Builder{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = file, file, log
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libraries, ":"))
	_ = cmd.Run() // exits with an error after a connection that did not log in
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, log.String())
}

// Log returns the server's log of the connections that have ended.
func (s *Server) Log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.log, "\n")
}

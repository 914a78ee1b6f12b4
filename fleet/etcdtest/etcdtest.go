// Package etcdtest runs real etcd servers for tests.
package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"boxgate/fleet"
)

// program is built by `make etcd`.
const program = "/var/lib/boxgate/kubernetes/etcd"

// patience bounds a wait of a test.
const patience = time.Minute

// Server is one etcd server on Unix sockets in a directory of its own. Its methods end the test on failure.
type Server struct {
	t     testing.TB
	dir   string
	cmd   *exec.Cmd
	start func(*exec.Cmd) error
	tls   string   // host and port that also serve with TLS; empty: none
	args  []string // more arguments
}

// Program returns the path of etcd. Without it the test is skipped in the quick tier and fails in the others.
func Program(t testing.TB) string {
	t.Helper()
	if _, err := os.Stat(program); err != nil {
		if testing.Short() {
			t.Skipf("%v; make etcd builds it", err)
		}
		t.Fatalf("%v; make etcd builds it", err)
	}
	return program
}

// Start starts a server with one member. It ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	s := newServer(t)
	s.Restart()
	return s
}

// StartTLS is [Start] with a second listener with TLS at a host and port, for clients with a certificate, see [Server.Access]. start starts
// the program, perhaps in a network namespace.
func StartTLS(t testing.TB, start func(*exec.Cmd) error, address string) *Server {
	t.Helper()
	s := newServer(t)
	s.start, s.tls = start, address
	s.writeCertificates(address)
	s.Restart()
	return s
}

// StartWith is [Start] with more arguments for etcd.
func StartWith(t testing.TB, args ...string) *Server {
	t.Helper()
	s := newServer(t)
	s.args = args
	s.Restart()
	return s
}

// StartOnDisk is [Start] on a disk of its own, a tmpfs of that many MiB, which [Server.FillDisk] fills. It needs root. etcd reserves 128 MiB.
func StartOnDisk(t testing.TB, size int) *Server {
	t.Helper()
	s := newServer(t)
	data := filepath.Join(s.dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	mountDisk(t, data, size)
	t.Cleanup(s.Kill)
	s.Restart()
	return s
}

// mountDisk mounts a tmpfs of some MiB until the end of the test.
func mountDisk(t testing.TB, at string, size int) {
	t.Helper()
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=0700", size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the directory is removed
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// FillDisk leaves no free byte on the disk of [StartOnDisk], until free is called.
func (s *Server) FillDisk() (free func()) {
	s.t.Helper()
	return fillDisk(s.t, filepath.Join(s.dir, "data"))
}

func fillDisk(t testing.TB, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4<<10))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return func() { _ = os.Remove(path) }
}

// AwaitExit waits until the server has ended by itself.
func (s *Server) AwaitExit() {
	s.t.Helper()
	ended := make(chan struct{})
	go func() { _ = s.cmd.Wait(); close(ended) }()
	select {
	case <-ended:
		s.cmd = nil
	case <-time.After(patience):
		s.t.Fatal("etcd still runs")
	}
}

func newServer(t testing.TB) *Server {
	t.Helper()
	Program(t)
	dir, err := os.MkdirTemp("", "etcd") // t.TempDir is too long for the name of a socket
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, dir: dir, start: (*exec.Cmd).Start}
	t.Cleanup(func() {
		s.Kill()
		_ = os.RemoveAll(dir)
	})
	return s
}

// Endpoint is the URL of the server.
func (s *Server) Endpoint() string { return "unix://" + filepath.Join(s.dir, "client:1") }

// Data is the directory with the data of the server.
func (s *Server) Data() string { return filepath.Join(s.dir, "data") }

// Kill ends the server with SIGKILL, if it runs.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

// Restart starts the server on its data, and waits until it serves.
func (s *Server) Restart() {
	s.t.Helper()
	for _, socket := range []string{"client:1", "peer:1"} {
		_ = os.Remove(filepath.Join(s.dir, socket))
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	// The sockets are files of the working directory: etcd requires the form of host and port.
	clients := "unix://client:1"
	var secured []string
	if s.tls != "" {
		clients += ",https://" + s.tls
		secured = []string{"--cert-file=" + serverFile, "--key-file=" + serverFile, "--trusted-ca-file=" + caFile, "--client-cert-auth"}
	}
	s.cmd = exec.Command(program, "--data-dir=data", "--listen-client-urls="+clients, "--advertise-client-urls=unix://client:1", "--listen-peer-urls=unix://peer:1",
		"--initial-advertise-peer-urls=unix://peer:1", "--initial-cluster=default=unix://peer:1", "--unsafe-no-fsync", "--logger=zap", "--log-level=warn")
	s.cmd.Args = append(append(s.cmd.Args, secured...), s.args...)
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = s.dir, log, log
	if err := s.start(s.cmd); err != nil {
		s.t.Fatal(err)
	}
	client := s.Client()
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := client.Get(ctx, "ready"); err != nil {
		text, _ := os.ReadFile(log.Name())
		s.t.Fatalf("etcd does not serve: %v\n%s", err, text)
	}
}

// Process returns the running server.
func (s *Server) Process() *os.Process { return s.cmd.Process }

// StartProxy starts etcd's gRPC proxy before the server, which merges the watches and leases of its clients. It ends with the test.
func (s *Server) StartProxy() (endpoint string, process *os.Process) {
	s.t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close() // the proxy cannot choose a free port
	cmd := exec.Command(program, "grpc-proxy", "start", "--endpoints="+s.Endpoint(), "--listen-addr="+address, "--advertise-client-url=", "--data-dir=proxy")
	cmd.Dir = s.dir
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	endpoint = "http://" + address
	client, err := fleet.Dial(fleet.Access{Endpoints: []string{endpoint}})
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	Until(s.t, "the proxy serves", func() bool { _, err := client.Get(ctx, "ready"); return err == nil })
	return endpoint, cmd.Process
}

// Erase stops the server and removes its data, as an operator does before restoring a backup.
func (s *Server) Erase() {
	s.t.Helper()
	s.Kill()
	if err := os.RemoveAll(filepath.Join(s.dir, "data")); err != nil {
		s.t.Fatal(err)
	}
}

// Client returns a client of the server. It is closed with the test.
func (s *Server) Client() *clientv3.Client {
	s.t.Helper()
	client, err := fleet.Dial(fleet.Access{Endpoints: []string{s.Endpoint()}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// Until waits for a condition.
func Until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// Package buckettest runs an S3 server for tests: versitygw, on a directory. Clients connect through a listener of the test, which can end
// or delay their connections.
package buckettest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// program is the server, made by `make s3`.
const program = "/var/lib/boxgate/s3/versitygw"

// The credentials and the bucket of a server.
const (
	AccessKey = "boxgate"
	SecretKey = "a-secret-of-the-tests"
	Bucket    = "snapshots"
)

// Server is an S3 server with one empty bucket.
type Server struct {
	Endpoint string // host and port
	CA       []byte // PEM, of the server's certificate
	Dir      string // the objects of the bucket, by their names

	Sent, Received atomic.Int64 // bytes of contents of all connections, to and from the server

	config *tls.Config
	socket string
	mu     sync.Mutex
	lns    []net.Listener    // guarded by mu
	conns  map[net.Conn]bool // guarded by mu
	cut    atomic.Int64      // see CutAfter
	closed bool              // guarded by mu
	held   chan struct{}     // guarded by mu; closed by the end of Hang
	drip   atomic.Int64      // see Drip
}

// Start starts a server on a directory. It ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartOn(t, t.TempDir())
}

// StartOn starts a server on a directory.
func StartOn(t testing.TB, dir string) *Server {
	t.Helper()
	if _, err := os.Stat(program); err != nil {
		if testing.Short() {
			t.Skipf("%v; make s3 builds it", err)
		}
		t.Fatalf("%v; make s3 builds it", err)
	}
	sockets, err := os.MkdirTemp("", "s3") // a short path
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Dir: filepath.Join(dir, "data", Bucket), socket: filepath.Join(sockets, "s"), conns: map[net.Conn]bool{}}
	for _, d := range []string{s.Dir, filepath.Join(dir, "meta")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(sockets, "log"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "--port", s.socket, "--access", AccessKey, "--secret", SecretKey, "--quiet", "posix", "--sidecar", filepath.Join(dir, "meta"), filepath.Join(dir, "data"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, ln := range s.listeners() {
			ln.Close()
		}
		s.CutAll()
		cancel()
		_ = cmd.Wait()
		log.Close()
		_ = os.RemoveAll(sockets)
	})
	s.listen(t)
	end := time.Now().Add(time.Minute)
	for {
		c, err := net.Dial("unix", s.socket)
		if err == nil {
			c.Close()
			return s
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("versitygw does not serve: %v\n%s", err, text)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// listen accepts clients with TLS.
func (s *Server) listen(t testing.TB) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "S3"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	s.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	s.config = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Endpoint = s.ListenOn(ln)
}

// ListenOn also accepts clients from another listener on 127.0.0.1, such as one of another network namespace, and returns its address.
func (s *Server) ListenOn(ln net.Listener) (endpoint string) {
	s.mu.Lock()
	s.lns = append(s.lns, ln)
	s.mu.Unlock()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go s.serve(tls.Server(c, s.config))
		}
	}()
	return ln.Addr().String()
}

func (s *Server) listeners() []net.Listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lns
}

// serve passes on one connection.
func (s *Server) serve(c net.Conn) {
	defer c.Close()
	to, err := net.Dial("unix", s.socket)
	if err != nil {
		return
	}
	defer to.Close()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.conns[c] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, c)
	}()
	go func() {
		defer to.Close()
		_, _ = io.Copy(&metered{to, s, &s.Sent}, c)
	}()
	_, _ = io.Copy(&metered{c, s, &s.Received}, to)
}

// metered counts the written bytes, and ends all connections after CutAfter bytes.
type metered struct {
	net.Conn
	server *Server
	sum    *atomic.Int64
}

func (m *metered) Write(p []byte) (int, error) {
	m.server.mu.Lock()
	held := m.server.held
	m.server.mu.Unlock()
	if held != nil {
		<-held
	}
	if every := time.Duration(m.server.drip.Load()); every > 0 && m.sum == &m.server.Received {
		for i := range p {
			time.Sleep(every)
			if _, err := m.Conn.Write(p[i : i+1]); err != nil {
				return i, err
			}
		}
		return len(p), nil
	}
	m.sum.Add(int64(len(p)))
	if left := m.server.cut.Load(); left > 0 && m.server.cut.Add(-int64(len(p))) <= 0 {
		m.server.cut.Store(0)
		m.server.CutAll()
		return 0, net.ErrClosed
	}
	return m.Conn.Write(p)
}

// CutAfter ends all connections once, after n more bytes in both directions.
func (s *Server) CutAfter(n int64) { s.cut.Store(n) }

// Hang makes the server silent on all connections until the end of the test, or until release is called.
func (s *Server) Hang(t testing.TB) (release func()) {
	held := make(chan struct{})
	s.mu.Lock()
	s.held = held
	s.mu.Unlock()
	release = sync.OnceFunc(func() {
		s.mu.Lock()
		s.held = nil
		s.mu.Unlock()
		close(held)
	})
	t.Cleanup(release)
	return release
}

// Drip makes the server send single bytes in this interval; 0 ends that.
func (s *Server) Drip(every time.Duration) { s.drip.Store(int64(every)) }

// CutAll ends all connections.
func (s *Server) CutAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

// Refuse ends all connections, and refuses new ones until it is called with false.
func (s *Server) Refuse(refuse bool) {
	s.mu.Lock()
	s.closed = refuse
	s.mu.Unlock()
	s.CutAll()
}

// Roots returns the pool with the server's certificate.
func (s *Server) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.CA)
	return pool
}
